"""The CPU, memory and pids limit and the allowed CPUs of this process, from cgroup v1, v2, hybrid, cpuset, affinity.

Only reading lives here. Shares, weights and requests are not read at all: they bound nothing. What to make of a
limit (rounding, budget, workers) lives in `planning`; the node's CPUs in `topology`.

Each controller is looked for where the kernel says it is: its mount in /proc/self/mountinfo (v1's where there is one,
else v2's), and below it the group of /proc/self/cgroup, taken relative to the root of that mount. In a cgroup
namespace below a mount from outside (root `/..`) names are hidden: there the group is the folder that lists this
process. A group that is nowhere below the mount point (as in a container that sees host paths) is the mount point
itself. From the group the folders are climbed up to the mount point, and the smallest limit on the way wins.

A MISSING file falls through to the next source, a BROKEN one raises MachineError with its path and content:

    quota         missing: the next folder up        broken: empty, not a number, zero or less (v1's -1 is no limit)
    period        missing: the kernel's 100000       broken: empty, not a number, zero or less; ignored without a quota
    memory, pids  missing: the next folder up        broken: empty, not a number, zero or less (-1 is no limit)
    cpuset        missing or empty: the folder's     broken: not a CPU list
                  other file, then the next up
    affinity      missing: no bound                  broken: empty, not a CPU list
    RAM           missing: no bound                  broken: MemTotal that is no number of kB
    cgroup        missing: the mount point           broken: a line that is not hierarchy:controllers:/path
    mountinfo     missing: no cgroup, so no limits   broken: a line that is not a mount

"max" is no limit, nor is a number of 2^62 or more (v1 memory writes its largest page count for "none"). A file that
is there but may not be read counts as missing, and the source says so. Allowed CPUs that turn out empty raise.
The node's RAM is the last bound of memory: where nothing limits it, or only to more than there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import TypeVar

from configs.errors import MachineError
from configs.topology import MachineFiles, broken, format_cpu_list, parse_cpu_list, read_topology

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
DEFAULT_PERIOD = "100000"
NO_LIMIT = 2**62
MEMORY = {"v1": "memory.limit_in_bytes", "v2": "memory.max"}
PIDS = {"v1": "pids.max", "v2": "pids.max"}
N = TypeVar("N", int, float)


Reading = tuple[N | None, str]  # the limit of one folder (None: no limit) and the words for it: path = content


@dataclass(frozen=True)
class Limits:
    """What the kernel lets this process use; None means no limit. Every `*_source` says in words where it was read.

    Attributes:
        cpus: CPU limit in CPUs (quota / period), as a fraction; None without a quota.
        cpus_source: such as "cgroup v2 /sys/fs/cgroup/a/b/cpu.max = 765000 100000" or "no quota".
        allowed: CPU ids, sorted: cpuset ∩ affinity ∩ online.
        allowed_source: which bound won, such as "cpuset /sys/fs/cgroup/cpuset/cpuset.cpus = 40-43".
        cpuset_is_smaller: whether the allowed CPUs are fewer than the node's online ones.
        memory: bytes; the node's RAM if that is less than every limit.
        pids: tasks.
        cgroup: "v1", "v2", "hybrid" or "none".
        cpu_stat: the cpu.stat file whose throttling counters belong to the quota, if any.
        host: the host name as this process sees it: in a pod, the pod's own; "" where there is none.
    """

    cpus: float | None
    cpus_source: str
    allowed: tuple[int, ...]
    allowed_source: str
    cpuset_is_smaller: bool
    memory: int | None
    memory_source: str
    pids: int | None
    pids_source: str
    cgroup: str
    cpu_stat: Path | None
    host: str = ""


@dataclass(frozen=True)
class Throttling:
    """Counters of a quota since its group was made: periods, periods in which it was used up, and seconds stopped.

    The seconds add up over CPUs, so that they may grow faster than the clock.
    """

    periods: int
    throttled_periods: int
    throttled_seconds: float


@dataclass(frozen=True)
class _Group:
    """Where one controller keeps this process: its folders, from the process's own group up to the mount point."""

    version: str
    folders: tuple[str, ...]


def read_limits(root: Path = Path("/"), online: Iterable[int] | None = None) -> Limits:
    """The limits of the process whose /proc/self lies under a root folder.

    Args:
        root: the root folder of the machine; nothing outside of it is read.
        online: the node's online CPU ids, `Topology.online`; read from the same root if not given.

    Raises:
        MachineError: a file is broken, or no CPU is allowed.
    """
    files = MachineFiles(root)
    nodes_cpus = tuple(sorted(set(read_topology(root).online if online is None else online)))
    kind, groups = _groups(files)
    cpus, cpus_source, quota_folder = _smallest(files, groups.get("cpu"), _quota, "no quota")
    memory, memory_source, _ = _smallest(files, groups.get("memory"), partial(_amount, MEMORY), "no memory limit")
    memory, memory_source = _bounded_by_ram(files, memory, memory_source)
    pids, pids_source, _ = _smallest(files, groups.get("pids"), partial(_amount, PIDS), "no pids limit")
    allowed, allowed_source = _allowed(files, groups.get("cpuset"), nodes_cpus)
    cpu_stat = f"{quota_folder}/cpu.stat"
    return Limits(
        cpus=cpus, cpus_source=cpus_source, allowed=allowed, allowed_source=allowed_source,
        cpuset_is_smaller=len(allowed) < len(nodes_cpus), memory=memory, memory_source=memory_source,
        pids=pids, pids_source=pids_source, cgroup=kind,
        cpu_stat=files.real(cpu_stat) if quota_folder and files.has(cpu_stat) else None,
        host=files.text("/proc/sys/kernel/hostname") or "")


def read_throttling(cpu_stat: Path) -> Throttling:
    """The throttling counters of a cpu.stat file (`Limits.cpu_stat`); zeros where it keeps none, as without a quota.

    Raises:
        MachineError: the file cannot be read, or a counter is not a number.
    """
    try:
        text = cpu_stat.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MachineError("cannot read the throttling counters", where=str(cpu_stat), why=str(error.strerror),
                           remedy="read the limits again: the process may have moved to another group") from error
    counters = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("nr_periods", "nr_throttled", "throttled_time", "throttled_usec"):
            if not re.fullmatch("[0-9]{1,20}", value.strip()):
                raise broken(str(cpu_stat), line, f"{name} and a number")
            counters[name] = int(value)
    seconds = counters.get("throttled_usec", 0) / 1e6 + counters.get("throttled_time", 0) / 1e9
    return Throttling(counters.get("nr_periods", 0), counters.get("nr_throttled", 0), seconds)


def _groups(files: MachineFiles) -> tuple[str, dict[str, _Group]]:
    """Which cgroup version this is, and the group of each controller that is mounted."""
    paths = _paths(files)
    mounts = _mounts(files)
    groups = {}
    for controller in CONTROLLERS:
        version, key = ("v1", controller) if controller in mounts else ("v2", "")
        if key in mounts:
            groups[controller] = _Group(version, _folders(files, mounts[key], paths.get(key, "/")))
    v1, v2 = any(controller in mounts for controller in CONTROLLERS), "" in mounts
    return "hybrid" if v1 and v2 else "v1" if v1 else "v2" if v2 else "none", groups


def _paths(files: MachineFiles) -> dict[str, str]:
    """Path of this process's group by controller; "" is v2's."""
    paths = {}
    for line in (files.text("/proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3 or not fields[2].startswith("/"):
            raise broken("/proc/self/cgroup", line, "hierarchy:controllers:/path")
        paths.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return paths


def _mounts(files: MachineFiles) -> dict[str, list[tuple[str, str]]]:
    """(root within the hierarchy, mount point) of every cgroup mount by controller, newest first; "" is v2's."""
    mounts: dict[str, list[tuple[str, str]]] = {}
    for line in (files.text("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, (filesystem, *rest) = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(rest) < 2:
            raise broken("/proc/self/mountinfo", line, "id parent device root point options - type source options")
        if filesystem in ("cgroup", "cgroup2"):
            inside, point = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in fields[3:5])
            for controller in rest[1].split(",") if filesystem == "cgroup" else [""]:
                mounts.setdefault(controller, []).insert(0, (inside, point))
    return mounts


def _folders(files: MachineFiles, mounts: list[tuple[str, str]], path: str) -> tuple[str, ...]:
    """The folders of a group, from its own up to the mount point; the mount point alone if it is not below any."""
    ordered = sorted(mounts, key=lambda mount: not mount[1].startswith("/sys/fs/cgroup"))
    for inside, point in ordered:
        prefix = inside.rstrip("/")
        steps = [step for step in path.removeprefix(prefix).split("/") if step]
        if f"{path}/".startswith(f"{prefix}/") and ".." not in steps and files.has("/".join([point, *steps])):
            return _climb(point, steps)
    for inside, point in ordered:
        unnamed = inside.count("/..") - path.count("/..")
        if unnamed > 0 and re.fullmatch(r"(/\.\.)+", inside):
            below = _listing_this_process(files, point, "*/" * unnamed + escape(path.replace("/..", "").strip("/")))
            if below is not None:
                return _climb(point, below)
    return (ordered[0][1],)


def _climb(point: str, steps: list[str]) -> tuple[str, ...]:
    return tuple("/".join([point, *steps[:depth]]) for depth in range(len(steps), -1, -1))


def _listing_this_process(files: MachineFiles, point: str, pattern: str) -> list[str] | None:
    """The steps from a mount point down to the group, among those of a glob pattern, that this process is in."""
    pid = re.search(r"^Tgid:\s*([0-9]+)$", files.text("/proc/self/status") or "", re.MULTILINE)
    for folder in files.real(point).glob(pattern):
        steps = list(folder.relative_to(files.real(point)).parts)
        if pid and pid[1] in (files.text("/".join([point, *steps, "cgroup.procs"])) or "").split():
            return steps
    return None


def _smallest(files: MachineFiles, group: _Group | None, read: Callable[[MachineFiles, str, str], Reading[N] | None],
              without: str) -> tuple[N | None, str, str | None]:
    """The smallest limit on the way up, the words for it, and its folder; of equal ones, the lowest."""
    if group is None:
        return None, f"{without}: this controller is not mounted", None
    refused = len(files.unreadable)
    pairs = [(read(files, group.version, folder), folder) for folder in group.folders]
    readings = [(reading[0], reading[1], folder) for reading, folder in pairs if reading is not None]
    remark = "".join(f"; {reason}" for reason in files.unreadable[refused:])
    limits = [(value, words, folder) for value, words, folder in readings if value is not None]
    if limits:
        value, words, folder = min(limits, key=lambda limit: limit[0])
        return value, f"cgroup {group.version} {words}{remark}", folder
    words = readings[0][1] if readings else f"nothing to read from {group.folders[0]} up"
    return None, f"{without}: cgroup {group.version} {words}{remark}", None


def _quota(files: MachineFiles, version: str, folder: str) -> Reading[float] | None:
    """Quota / period of one folder, in CPUs."""
    path = f"{folder}/cpu.max" if version == "v2" else f"{folder}/cpu.cfs_quota_us"
    content = files.text(path)
    if content is None:
        return None
    if version == "v2":
        quota, _, period = content.partition(" ")
        unlimited, period_path, words = quota == "max", path, f"{path} = {content}"
        period = period or DEFAULT_PERIOD
    else:
        quota, period_path = content, f"{folder}/cpu.cfs_period_us"
        found = files.text(period_path)
        period = DEFAULT_PERIOD if found is None else found
        unlimited, words = quota == "-1", f"{path} = {quota}, cpu.cfs_period_us = {period}"
    if unlimited:
        return None, f"{path} = {content}"
    if not _positive(quota):
        raise broken(path, content, "a quota of microseconds above zero, or " + ("max" if version == "v2" else "-1"))
    if not _positive(period):
        raise broken(period_path, content if version == "v2" else period, "a period of microseconds above zero")
    return int(quota) / int(period), words


def _amount(names: dict[str, str], files: MachineFiles, version: str, folder: str) -> Reading[int] | None:
    """A limit that is one number, in a file named by version."""
    path = f"{folder}/{names[version]}"
    content = files.text(path)
    if content is None:
        return None
    if content not in ("max", "-1") and not _positive(content):
        raise broken(path, content, "a number above zero, or max")
    limited = content not in ("max", "-1") and int(content) < NO_LIMIT
    return int(content) if limited else None, f"{path} = {content}"


def _bounded_by_ram(files: MachineFiles, limit: int | None, source: str) -> tuple[int | None, str]:
    """The memory limit, or the node's RAM where that is less, and the words for it."""
    match = re.search(r"^MemTotal:(.*)$", files.text("/proc/meminfo") or "", re.MULTILINE)
    if match is None:
        return limit, source
    amount = re.fullmatch(r"\s*(0{0,9}[1-9][0-9]{0,14}) kB\s*", match[1])
    if amount is None:
        raise broken("/proc/meminfo", match[0], "MemTotal and a number of kB above zero")
    ram = int(amount[1]) * 1024
    if limit is not None and limit <= ram:
        return limit, source
    return ram, f"{source}; RAM /proc/meminfo MemTotal = {amount[1]} kB"


def _positive(content: str) -> bool:
    return re.fullmatch("0{0,9}[1-9][0-9]{0,19}", content) is not None


def _allowed(files: MachineFiles, group: _Group | None, online: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """cpuset ∩ affinity ∩ online, and which of them bounds it."""
    everything = set(online)
    whole = f"all online CPUs {format_cpu_list(online)}"
    refused = len(files.unreadable)
    bounds = [bound for bound in (_cpuset(files, group), _affinity(files)) if bound is not None]
    remark = "".join(f"; {reason}" for reason in files.unreadable[refused:])
    allowed = everything.intersection(*(ids for ids, _ in bounds))
    together = " and ".join(words for _, words in bounds) or whole
    if not allowed:
        raise MachineError("no CPU is allowed", where=together,
                           why=f"they have no CPU in common that is online ({format_cpu_list(online) or 'none'})",
                           remedy="give the pod a cpuset, and the process an affinity, within the online CPUs")
    winner = next((words for ids, words in bounds if everything.intersection(ids) == allowed), together)
    return tuple(sorted(allowed)), (whole if allowed == everything else winner) + remark


def _cpuset(files: MachineFiles, group: _Group | None) -> tuple[tuple[int, ...], str] | None:
    names = ("cpuset.cpus.effective" if group and group.version == "v2" else "cpuset.effective_cpus", "cpuset.cpus")
    for path in (f"{folder}/{name}" for folder in (group.folders if group else ()) for name in names):
        if ids := files.cpu_list(path):
            return ids, f"cpuset {path} = {format_cpu_list(ids)}"
    return None


def _affinity(files: MachineFiles) -> tuple[tuple[int, ...], str] | None:
    match = re.search(r"^Cpus_allowed_list:(.*)$", files.text("/proc/self/status") or "", re.MULTILINE)
    if match is None:
        return None
    try:
        ids = parse_cpu_list(match[1])
    except ValueError:
        ids = ()
    if not ids:
        raise broken("/proc/self/status", match[0], "Cpus_allowed_list and a CPU list")
    return ids, f"affinity /proc/self/status Cpus_allowed_list = {format_cpu_list(ids)}"
