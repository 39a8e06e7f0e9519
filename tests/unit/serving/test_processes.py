"""serving/processes.py reads /proc as the kernel writes it, and bears with processes that end meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.topology import parse_cpu_list
from serving.processes import alive, command_line, descendants, format_cpus, process, threads

MakeProcess = Callable[..., Path]


@pytest.mark.parametrize(("text", "cpus"), [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0-1,8,10-11\n", (0, 1, 8, 10, 11)),
                                            ("", ())])
def test_kernel_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus
    assert format_cpus(reversed(cpus)) == (text.strip() or "none")


def test_kernel_list_that_is_none() -> None:
    with pytest.raises(ValueError, match="neither a CPU id nor a range"):
        parse_cpu_list("0-x")


def test_name_with_blanks_and_parentheses(proc: Path, make_process: MakeProcess) -> None:
    make_process(10, (0,), name="tmux: (server) S 1", parent=4, ticks=20)
    found = process(10, proc)
    assert found is not None
    assert (found.parent, found.state, found.cpu_ticks, found.started) == (4, "S", 23, 4711)


def test_threads_with_their_own_cpus(proc: Path, make_process: MakeProcess) -> None:
    make_process(10, (0,), (2, 3))
    assert [(each.tid, each.cpus, each.last_cpu) for each in threads(10, proc)] == [(10, (0,), 0), (11, (2, 3), 3)]


def test_thread_that_ends_while_it_is_read(proc: Path, make_process: MakeProcess) -> None:
    make_process(10, (0,), (1,))
    (proc / "10" / "task" / "11" / "status").unlink()
    assert [each.tid for each in threads(10, proc)] == [10]


def test_descendants_of_descendants_parents_first(proc: Path, make_process: MakeProcess) -> None:
    for pid, parent in ((5, 1), (30, 5), (20, 30), (25, 30), (40, 20), (50, 1)):
        make_process(pid, parent=parent)
    assert [each.pid for each in descendants(5, proc)] == [30, 20, 25, 40] or \
        [each.pid for each in descendants(5, proc)] == [30, 25, 20, 40]


def test_nothing_there(proc: Path) -> None:
    assert process(10, proc) is None
    assert threads(10, proc) == ()
    assert command_line(10, proc) == ()
    assert not alive(10, proc)
    assert not alive(-1, proc)


def test_zombie_is_not_alive(proc: Path, make_process: MakeProcess) -> None:
    make_process(10, state="Z", command=())
    assert not alive(10, proc)
    assert command_line(10, proc) == ()


def test_this_very_process() -> None:
    assert alive(os.getpid())
    mine = threads(os.getpid())
    assert mine[0].tid == os.getpid()
    assert set(mine[0].cpus) == os.sched_getaffinity(0)
    assert "pytest" in " ".join(command_line(os.getpid()))
