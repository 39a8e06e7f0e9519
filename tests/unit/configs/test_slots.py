"""What `configs.slots` promises: where workers stand, given how many there are and how wide."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import limits, topology

from configs.slots import exclusive_slots, pack, shared_slots, sockets
from configs.topology import Topology


def possible(widths: list[int], rooms: list[int]) -> bool:
    """Whether some assignment fits, by trying all of them."""
    return any(all(sum(width for width, room in zip(widths, choice, strict=True) if room == index) <= size
                   for index, size in enumerate(rooms))
               for choice in product(range(len(rooms)), repeat=len(widths)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(2, 7), max_size=7), st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_law_pack_finds_a_way_where_there_is_one(widths: list[int], rooms: list[int]) -> None:
    widths = sorted(widths, reverse=True)
    found = pack(widths, rooms)
    assert (found is not None) == possible(widths, rooms)
    if found is not None:
        assert all(sum(width for width, room in zip(widths, found, strict=True) if room == index) <= size
                   for index, size in enumerate(rooms))


def test_pack_where_filling_up_the_first_socket_fails() -> None:
    """3 + 3 leaves 1 of 7; only 3 + 2 + 2 on both sockets fits all."""
    assert pack([3, 3, 2, 2, 2, 2], [7, 7]) is not None


def test_pack_gives_up_soon_where_there_is_no_way() -> None:
    assert pack([3] * 40, [7] * 16) is None
    assert pack([5, 5, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2] * 3, [11] * 12) is None


def ids(machine: Topology, shapes: list[tuple[int, int]], budget: int = 99, allowed: set[int] | None = None) -> object:
    """CPU ids by model and worker."""
    found = exclusive_slots(shapes, machine.physical_cores(allowed), budget)
    return [[slot.cpus for slot in own] for own in found]


def test_wide_workers_first_and_narrow_ones_fill_the_rest() -> None:
    machine = topology(sockets=2, cores=6)
    assert ids(machine, [(4, 1), (2, 4)]) == [[(4,), (5,), (10,), (11,)], [(0, 1, 2, 3), (6, 7, 8, 9)]]


@pytest.mark.parametrize(("shapes", "expected"), [
    ([(2, 2)], [[(0, 1), (2, 3)]]), ([(1, 3)], [[(0, 1, 2)]]), ([(1, 4), (2, 2)], [[(0, 1, 2, 3)], [(4, 5), (6, 7)]]),
    ([(1, 1), (3, 2)], [[(6,)], [(0, 1), (2, 3), (4, 5)]])])
def test_one_node_before_one_socket(shapes: list[tuple[int, int]], expected: object) -> None:
    assert ids(topology(sockets=1, nodes=4, cores=2), shapes) == expected


def test_the_tightest_node_is_taken_so_that_others_stay_whole() -> None:
    machine = topology(nodes=3, cores=4)
    assert ids(machine, [(1, 2), (2, 4)], allowed={*range(8), 10, 11}) == [[(10, 11)], [(0, 1, 2, 3), (4, 5, 6, 7)]]


def test_as_few_sockets_as_possible() -> None:
    machine = topology(sockets=3, cores=4)
    assert ids(machine, [(4, 1)], allowed={0, 1, 4, 5, 6, 7, 8}) == [[(4,), (5,), (6,), (7,)]]
    assert ids(machine, [(2, 2)], allowed={0, 1, 4, 5, 6, 8}) == [[(0, 1), (4, 5)]]
    assert ids(machine, [(1, 3)], allowed={0, 4, 5, 6}) == [[(4, 5, 6)]]


def test_a_worker_wider_than_any_socket_takes_what_the_whole_ones_leave_the_fullest_socket_first() -> None:
    machine = topology(sockets=2, cores=4)
    assert ids(machine, [(1, 6), (1, 2)]) == [[(2, 3, 4, 5, 6, 7)], [(0, 1)]]


def test_more_workers_than_the_budget_take_turns_on_its_cores() -> None:
    assert ids(topology(sockets=2, cores=4), [(1, 1), (1, 1), (1, 1)], budget=2) == [[(0,)], [(1,)], [(0,)]]


def test_sockets_of_one_core_each_count_by_numa_node() -> None:
    assert [len(group) for group in sockets(topology(sockets=4, cores=1).physical_cores())] == [1, 1, 1, 1]
    unknown = topology(sockets=4, cores=1, numa=False).physical_cores()
    assert [len(group) for group in sockets(unknown)] == [4]
    assert [len(group) for group in sockets(topology(sockets=2, cores=2).physical_cores())] == [2, 2]


@pytest.mark.parametrize("smt", [1, 2])
def test_shared_slots_are_all_allowed_cpus_of_a_socket(smt: int) -> None:
    machine = topology(sockets=2, cores=3, smt=smt)
    found = shared_slots([(3, 1)], machine, limits(machine).allowed, "")
    assert [slot.socket for slot in found[0]] == [0, 1, 0]
    assert found[0][0].cpus == tuple(cpu.id for cpu in machine.cpus if cpu.socket == 0)


def test_shared_workers_keep_to_sockets_with_as_many_cores() -> None:
    machine = topology(sockets=2, cores=4)
    found = shared_slots([(2, 3)], machine, {0, 1, *range(4, 8)}, "")
    assert [slot.cpus for slot in found[0]] == [(4, 5, 6, 7)] * 2


def test_shared_workers_are_spread_by_cores_not_by_sockets() -> None:
    machine = topology(sockets=2, cores=8)
    found = shared_slots([(9, 1)], machine, {0, 1, 2, 3, *range(8, 16)}, "")
    assert [slot.socket for slot in found[0]].count(1) == 6
