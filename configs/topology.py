"""CPUs, physical cores, hardware threads, sockets and NUMA nodes, read from sysfs under any root.

Here live the node's side of a machine (`read_topology`), CPU lists as the kernel writes them ("0-3,8"), and
`MachineFiles`, through which every reader looks at a machine: the real one, or one recorded in a folder.
What a pod may use of the node lives in `limits`; what to do with it, in `planning`.

What is missing falls through to the next source, what is broken raises MachineError with the file and its content:

    online CPUs     sys/devices/system/cpu/online, else the cpuN folders (without those whose own `online` is 0),
                    else the processors of proc/cpuinfo, else MachineError
    physical core   topology/core_cpus_list, else thread_siblings_list, else CPUs with the same socket and core_id,
                    else (no topology folder, as in some sandboxes) each CPU is its own core
    socket          topology/physical_package_id, else 0; -1, as virtual machines may say, is 0 too
    NUMA node       sys/devices/system/node/nodeN/cpulist, else None
    model, flags    proc/cpuinfo, else "unknown" and none
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from configs.errors import MachineError

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
HIGHEST_CPU = 65535  # the kernel stops at 8192; a broken "0-99999999999" must not fill the memory


@dataclass(frozen=True)
class Cpu:
    """One online hardware thread, by the kernel's CPU id.

    Attributes:
        id: the kernel's CPU id (what affinity masks and cpusets count in; never the core id).
        core: the lowest CPU id among its SMT siblings: one value for each physical core of the machine.
        socket: physical package id.
        node: NUMA node id, or None where the kernel reports none.
    """

    id: int
    core: int
    socket: int
    node: int | None


@dataclass(frozen=True)
class Topology:
    """The online CPUs of the node (not of the pod), sorted by id, and what kind of CPU they are.

    Attributes:
        model: the CPU's name as /proc/cpuinfo has it, or "unknown".
        architecture: "x86_64", "aarch64" or what else the flags betray; "unknown" if nothing does.
        flags: instruction set flags ("flags" on x86, "Features" on ARM).
    """

    cpus: tuple[Cpu, ...]
    model: str
    architecture: str
    flags: frozenset[str]

    @cached_property
    def by_id(self) -> dict[int, Cpu]:
        """The online CPUs by the kernel's id."""
        return {cpu.id: cpu for cpu in self.cpus}

    @property
    def online(self) -> tuple[int, ...]:
        """CPU ids, sorted."""
        return tuple(cpu.id for cpu in self.cpus)

    def physical_cores(self, allowed: Iterable[int] | None = None) -> tuple[Cpu, ...]:
        """One CPU for each physical core among the allowed CPUs (default: all): its lowest allowed hardware thread.

        Ids that are not online are left out. Sorted by id.
        """
        cores: dict[int, Cpu] = {}
        for cpu in self._among(allowed):
            cores.setdefault(cpu.core, cpu)
        return tuple(cores.values())

    def sockets(self, allowed: Iterable[int] | None = None) -> tuple[int, ...]:
        """Ids of the sockets that the allowed CPUs touch, sorted."""
        return tuple(sorted({cpu.socket for cpu in self._among(allowed)}))

    def nodes(self, allowed: Iterable[int] | None = None) -> tuple[int, ...]:
        """Ids of the NUMA nodes that the allowed CPUs touch, sorted; empty without NUMA information."""
        return tuple(sorted({cpu.node for cpu in self._among(allowed) if cpu.node is not None}))

    def _among(self, allowed: Iterable[int] | None) -> list[Cpu]:
        wanted = set(self.online if allowed is None else allowed)
        return [cpu for cpu in self.cpus if cpu.id in wanted]


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU ids, sorted and distinct, from a list as the kernel writes it: "0-3,8,10-11"; "" is the empty list.

    Raises:
        ValueError: not such a list, a range that runs backwards, or an id above HIGHEST_CPU.
    """
    ids: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part)
        if match is None:
            raise ValueError(f"{part!r} is neither a CPU id nor a range of them")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > HIGHEST_CPU:
            raise ValueError(f"{part!r} is not a rising range of CPU ids up to {HIGHEST_CPU}")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_cpu_list(ids: Iterable[int]) -> str:
    """The shortest list that the kernel would write for these CPU ids: "0-3,8,10-11"."""
    runs: list[list[int]] = []
    for cpu in sorted(set(ids)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class MachineFiles:
    """The files of one machine below a root folder, by the paths that the machine itself knows them by.

    Attributes:
        unreadable: path and reason of each file that is there but may not be read; it counts as missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: list[str] = []

    def real(self, path: str) -> Path:
        """Where a file of the machine is found from here."""
        return self.root / path.lstrip("/")

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder; one that may not be looked at is there."""
        try:
            self.real(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def text(self, path: str) -> str | None:
        """The content without surrounding blanks, or None where it is missing or may not be read."""
        try:
            return self.real(path).read_text(encoding="utf-8", errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.unreadable.append(f"{path} cannot be read ({error.strerror})")
            return None

    def integer(self, path: str) -> int | None:
        """The whole number in a file, or None where it is missing.

        Raises:
            MachineError: empty, or something else than a number.
        """
        text = self.text(path)
        if text is not None and not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise broken(path, text, "a whole number")
        return None if text is None else int(text)

    def cpu_list(self, path: str) -> tuple[int, ...] | None:
        """The CPU ids in a file (perhaps none), or None where it is missing.

        Raises:
            MachineError: not a CPU list.
        """
        text = self.text(path)
        try:
            return None if text is None else parse_cpu_list(text)
        except ValueError as error:
            raise broken(path, text or "", f"a CPU list such as 0-3,8 ({error})") from error

    def numbered(self, folder: str, prefix: str) -> tuple[int, ...]:
        """The N of every prefixN in a folder, sorted; empty without the folder."""
        try:
            names = [entry.name for entry in self.real(folder).iterdir()]
        except OSError:
            return ()
        return tuple(sorted(int(name.removeprefix(prefix)) for name in names if re.fullmatch(prefix + "[0-9]+", name)))


def broken(path: str, content: str, expected: str) -> MachineError:
    """The error for a file whose content the kernel would not write; shows at most 80 characters of it."""
    shown = content if len(content) <= 80 else content[:77] + "..."
    return MachineError(f"{path} is broken", where=path, why=f"content {shown!r} where there should be {expected}",
                        remedy="look at the file inside the pod; if it is right there, record the machine again")


def read_topology(root: Path = Path("/")) -> Topology:
    """The online CPUs of the machine under a root folder.

    Raises:
        MachineError: no CPU is found, or a file is broken.
    """
    files = MachineFiles(root)
    blocks = _cpuinfo(files)
    node_of = {cpu: node for node in files.numbered(NODE, "node")
               for cpu in files.cpu_list(f"{NODE}/node{node}/cpulist") or ()}
    first_of: dict[tuple[int, int], int] = {}
    cpus = []
    for cpu in _online(files, blocks):
        folder = f"{CPU}/cpu{cpu}/topology"
        socket = max(0, files.integer(f"{folder}/physical_package_id") or 0)
        siblings = _siblings(files, folder, cpu)
        if siblings is None:
            core_id = files.integer(f"{folder}/core_id")
            siblings = (cpu,) if core_id is None or core_id < 0 else (first_of.setdefault((socket, core_id), cpu),)
        cpus.append(Cpu(id=cpu, core=min(siblings), socket=socket, node=node_of.get(cpu)))
    flags = [frozenset((block.get("flags") or block.get("Features") or "").split()) for block in blocks]
    common = frozenset.intersection(*flags) if flags else frozenset()
    architecture = "x86_64" if "lm" in common else "aarch64" if "asimd" in common else "unknown"
    return Topology(cpus=tuple(cpus), model=_model(blocks), architecture=architecture, flags=common)


def _cpuinfo(files: MachineFiles) -> list[dict[str, str]]:
    """The fields of each processor in /proc/cpuinfo."""
    blocks = []
    for block in re.split(r"\n\s*\n", files.text("/proc/cpuinfo") or ""):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if fields.get("processor", "").isdecimal():
            blocks.append(fields)
    return blocks


def _model(blocks: list[dict[str, str]]) -> str:
    """The CPU's name; ARM has only the numbers of its maker and part."""
    first = blocks[0] if blocks else {}
    if "CPU part" in first and "model name" not in first:
        return f"implementer {first.get('CPU implementer', 'unknown')}, part {first['CPU part']}"
    return first.get("model name", "unknown")


def _online(files: MachineFiles, blocks: list[dict[str, str]]) -> tuple[int, ...]:
    online = files.cpu_list(f"{CPU}/online")
    if online is None:
        online = tuple(cpu for cpu in files.numbered(CPU, "cpu") if files.text(f"{CPU}/cpu{cpu}/online") != "0")
        online = online or tuple(sorted(int(block["processor"]) for block in blocks))
    if not online:
        raise MachineError("no CPU found", where=f"{CPU}/online, {CPU}/cpuN, /proc/cpuinfo",
                           why="the first is empty, or all of them are missing",
                           remedy="check that this is the root folder of a machine")
    return online


def _siblings(files: MachineFiles, folder: str, cpu: int) -> tuple[int, ...] | None:
    """The hardware threads of this CPU's core, itself included; None where sysfs does not say."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        siblings = files.cpu_list(f"{folder}/{name}")
        if siblings is not None:
            if cpu not in siblings:
                raise broken(f"{folder}/{name}", format_cpu_list(siblings), f"a CPU list with {cpu} itself in it")
            return siblings
    return None
