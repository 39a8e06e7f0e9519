"""What is asked of the pod before the JVM starts: CPUs, ports, the folder for temporary files, variables, the key file.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from configs.plan import Plan
from configs.settings import Settings
from serving.preflight_problem import Problem
from serving.processes import PROC, command_line, format_cpus

FIRST_WORKER_PORT = 9000  # of a worker's socket: a part of its path, or a TCP port where there are no Unix sockets
LONGEST_SOCKET_PATH = 107  # bytes; with the zero at its end, the kernel's sun_path
COMMAND_LENGTH = 100  # characters of a command line that are shown
LISTEN = "0A"  # in /proc/net/tcp


def cpus(plan: Plan, allowed: Collection[int]) -> list[Problem]:
    """Slots on CPUs that this process may not run on: a pin to them fails, and the worker stands anywhere.

    Args:
        allowed: CPU ids of this process's affinity, which the kernel keeps within its cpuset.
    """
    found = []
    for model in plan.models:
        for index, slot in enumerate(model.slots):
            if outside := set(slot.cpus) - set(allowed):
                found.append(Problem(
                    "error", f"{model.name}, worker {index}: planned on CPUs that this pod has not got",
                    f"planned {format_cpus(slot.cpus)}, without {format_cpus(sorted(outside))}; allowed are "
                    f"{format_cpus(sorted(allowed))}",
                    "the cpuset has changed, or the plan was written elsewhere: plan again, here"))
    return found


def ports(settings: Settings, root: Path = PROC) -> list[Problem]:
    """Whether each port of serving.yaml can be had, on the address that it will be bound to. That no two fields have
    the same port is settled where the file is read.

    Args:
        root: /proc, where the holder of a taken port is looked for.
    """
    public = ("inference", "metrics", "health")
    found = []
    for name, port in settings.ports:
        address = settings.bind if name in public else "127.0.0.1"
        error = _bind(address, port)
        if error is None:
            continue
        what = f"ports.{name}: {address}:{port} cannot be opened"
        if error.errno == errno.EADDRINUSE:
            found.append(Problem("error", what, f"it is taken: {holder(port, root)}",
                                 f"stop that process, or give ports.{name} another port in serving.yaml"))
        elif error.errno == errno.EADDRNOTAVAIL:
            found.append(Problem("error", what, f"{address} is no address of this pod",
                                 "set bind in serving.yaml: 0.0.0.0 in a container, 127.0.0.1 elsewhere"))
        else:
            found.append(Problem("error", what, error.strerror or str(error),
                                 f"give ports.{name} a port from 1024 on in serving.yaml" if port < 1024 else
                                 "let the pod's security profile allow it"))
    return found


def _bind(address: str, port: int) -> OSError | None:
    """What the kernel says against it. Nothing listens: a probe must not reach a server that is not there yet."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the JVM does: old connections do not count
        try:
            one.bind((address, port))
        except OSError as error:
            return error
    return None


def holder(port: int, root: Path = PROC) -> str:
    """Who listens on a port: pid and command line, as far as this process can see them."""
    links = {f"socket:[{inode}]" for inode in _listening(port, root)}
    for folder in root.iterdir() if links else ():
        if not folder.name.isdigit():
            continue
        try:
            if any(str(one.readlink()) in links for one in (folder / "fd").iterdir()):
                words = " ".join(command_line(int(folder.name), root)).split()  # some hold lines of their own
                return f"by pid {folder.name}: {' '.join(words)[:COMMAND_LENGTH]}"
        except OSError:  # gone, or somebody else's
            continue
    return "by a process that cannot be seen from here"


def _listening(port: int, root: Path) -> Iterator[str]:
    """Inodes of the sockets that listen on a port, in this network namespace."""
    for name in ("tcp", "tcp6"):
        try:
            rows = [line.split() for line in (root / "net" / name).read_text().splitlines()[1:]]
        except OSError:
            continue
        yield from (row[9] for row in rows
                    if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port)


def temporary(tmp: Path, plan: Plan | None, unpacked: Sequence[tuple[int, int]]) -> list[Problem]:
    """The folder where TorchServe unpacks archives, and keeps its sockets, its pid file and its native libraries.

    Mounted noexec is a warning: TorchServe works there, but cannot load its native library, and then talks to the
    workers over TCP ports of the loopback address, which it shares with everything else in the pod. It is an error
    where one of these ports is taken, since that worker would never start.

    Args:
        unpacked: bytes and files of each archive.
    """
    other = "use a --run-dir on another file system"
    try:
        with tempfile.TemporaryFile(dir=tmp) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        return [Problem("error", f"the folder for temporary files cannot be written: {tmp}",
                        error.strerror or str(error), other + ", or mount a volume there (emptyDir)")]
    found = []
    stat = os.statvfs(tmp)
    workers = sum(model.workers for model in plan.models) if plan else 1
    size, free = sum(each for each, _ in unpacked), stat.f_bavail * stat.f_frsize
    if size > free:
        found.append(Problem("error", f"the archives cannot be unpacked in {tmp}",
                             f"they take {_megabytes(size)}, and {_megabytes(free)} are free", other))
    count = sum(each for _, each in unpacked)
    if stat.f_files and count > stat.f_favail:  # some file systems do not count them
        found.append(Problem("error", f"the archives cannot be unpacked in {tmp}",
                             f"they hold {count} files, and {stat.f_favail} inodes are free", other))
    address = f"{tmp}/.ts.sock.{FIRST_WORKER_PORT + workers - 1}"
    if len(os.fsencode(address)) > LONGEST_SOCKET_PATH:
        found.append(Problem("error", f"no worker could be reached: the path of its socket is too long: {address}",
                             f"it has {len(os.fsencode(address))} bytes, and the kernel takes {LONGEST_SOCKET_PATH}",
                             "use a --run-dir with a shorter path"))
    if stat.f_flag & os.ST_NOEXEC:
        found += _over_tcp(tmp, workers)
    return found


def _over_tcp(tmp: Path, workers: int) -> list[Problem]:
    what = f"the folder for temporary files is mounted noexec: {tmp}"
    last = FIRST_WORKER_PORT + workers - 1
    remedy = "mount it without noexec, or use a --run-dir elsewhere"
    taken = [port for port in range(FIRST_WORKER_PORT, last + 1) if _bind("127.0.0.1", port)]
    if taken:
        return [Problem("error", what, "TorchServe would use TCP ports instead of Unix sockets, and of those "
                        f"{', '.join(map(str, taken))} cannot be had: {holder(taken[0])}", remedy)]
    return [Problem("warning", what, "TorchServe cannot load its native library from there: it talks to its workers "
                    f"over TCP, on 127.0.0.1:{FIRST_WORKER_PORT}–{last}, where others in the pod reach them", remedy)]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def variables(environment: Mapping[str, str], notes: Sequence[str]) -> list[Problem]:
    """Inherited variables that gave way to the plan, or act behind its back.

    Args:
        notes: `rendering.environment`'s lines, "environment: NAME=VALUE …".
    """
    found = [Problem("warning", note.removeprefix("environment: "), "the plan and serving.yaml decide",
                     f"remove {_name(note)} from the image or the pod") for note in notes]
    if options := environment.get("_JAVA_OPTIONS"):
        found.append(Problem("warning", f"_JAVA_OPTIONS={options} beats vmargs of config.properties",
                             "the JVM reads it last: its heap and its count of CPUs may not be the plan's",
                             "remove _JAVA_OPTIONS from the image or the pod, or use JAVA_TOOL_OPTIONS, which vmargs "
                             "beats"))
    return found


def _name(note: str) -> str:
    return note.removeprefix("environment: ").partition("=")[0]


def key_file(settings: Settings, folder: Path) -> list[Problem]:
    """Whether TorchServe will be able to write its key file, and keep it from others: without, its JVM ends, or runs
    on with keys that nobody has.

    Args:
        folder: TorchServe's working directory.
    """
    if not settings.token_authorization:
        return []
    file = folder / "key_file.json"
    try:
        if file.exists() and not file.is_file():
            raise FileExistsError(errno.EEXIST, "it is there, and is no file")
        if file.exists() and os.geteuid() not in (0, file.stat().st_uid):
            raise PermissionError(errno.EPERM, f"it belongs to user {file.stat().st_uid}")
        with tempfile.NamedTemporaryFile(dir=folder) as trial:
            Path(trial.name).chmod(0o600)
    except OSError as error:
        return [Problem("error", f"token_authorization: the key file cannot be written: {file}",
                        error.strerror or str(error),
                        "use another --run-dir, or set token_authorization: false in serving.yaml")]
    return []
