"""Processes and their threads, read from /proc under any root: the tree, who is alive, and which CPUs each may run on.

Only reading lives here. `supervisor` ends processes, `drain` judges whether they are busy, and `audit` whether they
stand where the plan wants them. A process may end while it is being read: then it counts as not there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from configs.topology import format_cpu_list, parse_cpu_list

PROC = Path("/proc")
ENDED = frozenset("ZX")  # zombie, dead: only the exit status is left


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        state: the kernel's letter: R running, S sleeping, D waiting for a device, T stopped, Z zombie, X dead.
        cpu_ticks: CPU time of all its threads so far, in clock ticks (usually of 10 ms).
        started: clock ticks after boot; together with the pid it names one process for good.
    """

    pid: int
    parent: int
    state: str
    cpu_ticks: int
    started: int


@dataclass(frozen=True)
class Thread:
    """One thread of a process.

    Attributes:
        cpus: CPU ids that it may run on, sorted.
        last_cpu: the CPU id that it ran on last.
        state: as in Process.
        cpu_ticks: CPU time so far, in clock ticks.
    """

    tid: int
    cpus: tuple[int, ...]
    last_cpu: int
    state: str
    cpu_ticks: int


def process(pid: int, root: Path = PROC) -> Process | None:
    """One process, or None when there is none of that id."""
    fields = _stat(root / str(pid) / "stat")
    if fields is None:
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))


def processes(root: Path = PROC) -> tuple[Process, ...]:
    """All processes of this pid namespace."""
    found = (process(int(entry.name), root) for entry in root.iterdir() if entry.name.isdigit())
    return tuple(each for each in found if each is not None)


def descendants(pid: int, root: Path = PROC) -> tuple[Process, ...]:
    """Children, their children and so on, zombies included; a parent always comes before its children."""
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for each in processes(root):
        children[each.parent].append(each)
    found: list[Process] = []
    parents = [pid]
    while parents:
        below = children.pop(parents.pop(0), [])
        found += below
        parents += [child.pid for child in below]
    return tuple(found)


def alive(pid: int, root: Path = PROC) -> bool:
    """Whether a process of that id exists and is no zombie."""
    found = process(pid, root) if pid > 0 else None
    return found is not None and found.state not in ENDED


def command_line(pid: int, root: Path = PROC) -> tuple[str, ...]:
    """The arguments of a process, the program's name first; empty when it is gone or a zombie."""
    try:
        raw = (root / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def threads(pid: int, root: Path = PROC) -> tuple[Thread, ...]:
    """All threads of a process, sorted by id, the main thread first; empty when it is gone."""
    try:
        tids = sorted(int(entry.name) for entry in (root / str(pid) / "task").iterdir())
    except OSError:
        return ()
    found = []
    for tid in tids:
        folder = root / str(pid) / "task" / str(tid)
        fields = _stat(folder / "stat")
        cpus = _allowed_cpus(folder / "status")
        if fields is not None and cpus is not None:
            found.append(Thread(tid, cpus, int(fields[36]), fields[0], int(fields[11]) + int(fields[12])))
    return tuple(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """A kernel list such as "0-2,5" of these CPU ids; "none" when there are none."""
    return format_cpu_list(cpus) or "none"


def _stat(path: Path) -> list[str] | None:
    """The fields of a stat file from the state on; the name before it may itself hold blanks and parentheses."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _allowed_cpus(path: Path) -> tuple[int, ...] | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    allowed = (line.partition(":")[2] for line in lines if line.startswith("Cpus_allowed_list:"))
    return next(map(parse_cpu_list, allowed), None)
