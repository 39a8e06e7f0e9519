"""Where workers stand: (workers × threads of each model, allowed CPUs) → slots.

Nothing here decides how many workers there are or how wide; that is `parts`. A "socket" is what shares a cache and a
memory controller. Where every socket has one core only, the numbering is a hypervisor's, and the NUMA node counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence

from configs.plan import Slot
from configs.topology import Cpu, Topology

Shape = tuple[int, int]  # workers, threads
# Ways to fill sockets that are tried before workers are let span two; a search this long means a very odd machine.
_TRIES = 20_000


def sockets(cores: Sequence[Cpu]) -> list[list[Cpu]]:
    """The cores of each socket, in the order of socket ids; of each NUMA node, where no socket has two of them."""
    by_socket = _grouped(cores, lambda core: core.socket)
    if len(by_socket) > 1 and all(len(group) == 1 for group in by_socket):
        return _grouped(cores, lambda core: -1 if core.node is None else core.node)
    return by_socket


def pack(widths: Sequence[int], rooms: Sequence[int]) -> list[int] | None:
    """A room for each worker, so that none is split and no room overflows; None where there is no such way.

    Args:
        widths: threads of each worker, widest first.
        rooms: cores of each socket.
    """
    refused: set[tuple[int, tuple[int, ...]]] = set()

    def place(index: int, free: list[int]) -> list[int] | None:
        if index == len(widths):
            return []
        state = (index, tuple(sorted(free)))
        if state in refused or len(refused) > _TRIES:
            return None
        for room in sorted(range(len(free)), key=lambda room: (free[room], room)):
            if free[room] >= widths[index]:
                free[room] -= widths[index]
                rest = place(index + 1, free)
                free[room] += widths[index]
                if rest is not None:
                    return [room, *rest]
        refused.add(state)
        return None

    return place(0, list(rooms))


def exclusive_slots(shapes: Sequence[Shape], cores: Sequence[Cpu], budget: int) -> list[tuple[Slot, ...]]:
    """Cores of its own for every worker, from as few sockets as possible, within one NUMA node or else one socket.

    With more workers than the budget has cores, each stands on one of `budget` cores and they take turns.
    """
    total = sum(workers * threads for workers, threads in shapes)
    groups = sockets(cores)
    if total > budget:
        chosen = [core for group in _fewest(groups, (), budget)[0] for core in group][:budget]
        slots, turn = [], 0
        for workers, _ in shapes:
            slots.append(tuple(_slot([chosen[(turn + worker) % len(chosen)]]) for worker in range(workers)))
            turn += workers
        return slots
    queue = sorted(((model, threads) for model, (workers, threads) in enumerate(shapes) for _ in range(workers)),
                   key=lambda each: -each[1])
    free, homes = _fewest(groups, [threads for _, threads in queue if threads > 1], total)
    homes += [None] * (len(queue) - len(homes))
    found: list[list[Slot]] = [[] for _ in shapes]
    # workers that must be split take what the whole ones leave, and narrow ones fill the rest
    for (model, threads), home in sorted(zip(queue, homes, strict=True), key=lambda each: each[1] is None):
        found[model].append(_slot(_take(free, home, threads)))
    return [tuple(own) for own in found]


def shared_slots(shapes: Sequence[Shape], topology: Topology, allowed: Iterable[int],
                 host: str) -> list[tuple[Slot, ...]]:
    """All allowed CPUs of one socket for every worker; of all sockets for one that is wider than any.

    Each worker, widest first, goes to the socket with the fewest threads for its cores.

    Args:
        host: the pod's name. It picks the socket that comes first, so that the pods of a node do not all do so.
    """
    own = set(allowed)
    groups = sockets(topology.physical_cores(own))
    by_group = [{core.core for core in group} for group in groups]
    bound = [_slot([cpu for cpu in topology.cpus if cpu.id in own and cpu.core in cores]) for cores in by_group]
    everywhere = _slot([cpu for cpu in topology.cpus if cpu.id in own])
    first = zlib.crc32(host.encode()) % len(groups)
    load = [0] * len(groups)
    found: list[list[Slot]] = [[] for _ in shapes]
    for model in sorted(range(len(shapes)), key=lambda model: -shapes[model][1]):
        workers, threads = shapes[model]
        homes = [index for index, group in enumerate(groups) if len(group) >= threads]
        for _ in range(workers):
            if not homes:
                found[model].append(everywhere)
                continue
            home = min(homes, key=lambda index: ((load[index] + threads) / len(groups[index]),
                                                 (index - first) % len(groups)))
            load[home] += threads
            found[model].append(bound[home])
    return [tuple(own) for own in found]


def _fewest(groups: list[list[Cpu]], wide: Sequence[int], total: int) -> tuple[list[list[Cpu]], list[int | None]]:
    """As few sockets as hold `total` cores and each of the wide workers whole, and the socket of each of these.

    Where there is no such way all sockets are returned, and None for each worker that must span two.
    """
    largest = sorted(range(len(groups)), key=lambda index: (-len(groups[index]), index))
    for count in range(1, len(groups) + 1):
        chosen = [list(groups[index]) for index in sorted(largest[:count])]
        rooms = [len(group) for group in chosen]
        homes = pack(wide, rooms) if sum(rooms) >= total else None
        if homes is not None:
            return chosen, list(homes)
    room = [len(group) for group in groups]
    split: list[int | None] = []
    for threads in wide:
        home = min((i for i in range(len(room)) if room[i] >= threads), key=lambda i: (room[i], i), default=None)
        if home is not None:
            room[home] -= threads
        split.append(home)
    return [list(group) for group in groups], split


def _take(free: list[list[Cpu]], home: int | None, count: int) -> list[Cpu]:
    """Removes `count` cores from a socket, from as few NUMA nodes as possible; from as few sockets, without a home."""
    if home is None:
        home = next((index for index, group in enumerate(free) if len(group) >= count), None)
    if home is None:
        taken = [core for group in sorted(free, key=len, reverse=True) for core in _few_nodes(group, count)][:count]
    else:
        taken = _few_nodes(free[home], count)[:count]
    for group in free:
        group[:] = [core for core in group if core not in taken]
    return sorted(taken, key=lambda core: core.id)


def _few_nodes(group: list[Cpu], count: int) -> list[Cpu]:
    """The cores of one socket in such an order that the first `count` touch few nodes: of one, if one has as many."""
    nodes = _grouped(group, lambda core: core.node)
    tightest = min((node for node in nodes if len(node) >= count), key=len, default=None)
    return tightest or [core for node in sorted(nodes, key=len, reverse=True) for core in node]


def _grouped(cores: Sequence[Cpu], key: Callable[[Cpu], Hashable]) -> list[list[Cpu]]:
    """Cores with the same key together; groups and their members in rising order of ids."""
    groups: dict[Hashable, list[Cpu]] = {}
    for core in sorted(cores, key=lambda core: (core.socket, -1 if core.node is None else core.node, core.id)):
        groups.setdefault(key(core), []).append(core)
    return list(groups.values())


def _slot(cores: Sequence[Cpu]) -> Slot:
    nodes = {core.node for core in cores}
    return Slot(tuple(core.id for core in cores), cores[0].socket, nodes.pop() if len(nodes) == 1 else None)
