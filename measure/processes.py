"""Processes that a run starts: their CPU time by role, pausing, and an end that leaves none behind.

A role is what the CPU table has a column for: TorchServe's JVM, the workers, and everything else of a server
(supervisor, launchers, API servers).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.processes import ENDED, Process, command_line, descendants, processes, threads

TICKS = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36
ROLES = ("jvm", "worker", "other")
_roles: dict[tuple[int, int], str] = {}


def become_subreaper() -> None:
    """Orphans of the servers become children of this process, so that they are found at the end.

    Without it a killed `torchserve` leaves its JVM running. A sandbox that forbids it only loses that certainty.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def cpu_by_role(roots: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """CPU seconds so far of each tree, by role.

    Args:
        roots: name → pid of the tree's first process.
    """
    everything = processes()
    below: dict[int, list[Process]] = {}
    for each in everything:
        below.setdefault(each.parent, []).append(each)
    by_pid = {each.pid: each for each in everything}
    found: dict[str, dict[str, float]] = {}
    for name, root in roots.items():
        seconds = dict.fromkeys(ROLES, 0.0)
        left = [by_pid[root]] if root in by_pid else []
        while left:
            each = left.pop()
            left += below.get(each.pid, [])
            seconds[role(each)] += each.cpu_ticks / TICKS
        found[name] = seconds
    return found


def role(process: Process) -> str:
    """jvm, worker or other."""
    key = (process.pid, process.started)
    if key not in _roles:
        words = command_line(process.pid)
        text = " ".join(words)
        if "org.pytorch.serve.ModelServer" in words:
            found = "jvm"
        elif "torch.backends.xeon.run_cpu" in text:
            found = "other"  # the launcher's wrapper names the worker's script among its arguments
        elif any(mark in text for mark in ("model_service_worker.py", "measure.in_process", "spawn_main")):
            found = "worker"
        else:
            found = "other"
        if not words or process.state in ENDED:
            return found
        _roles[key] = found
    return _roles[key]


def machine_cpu() -> tuple[float, float]:
    """(busy, stolen) CPU seconds of the whole machine since its boot; stolen is what the hypervisor gave to others."""
    fields = [int(field) / TICKS for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
    return user + nice + system + irq + softirq, steal


def workers(root: int) -> list[dict[str, object]]:
    """Each worker below a root: its pid, the CPUs it may run on, and how many threads it has."""
    found: list[dict[str, object]] = []
    for each in descendants(root):
        if role(each) == "worker":
            own = threads(each.pid)
            found.append({"pid": each.pid, "cpus": sorted({cpu for thread in own for cpu in thread.cpus}),
                          "threads": len(own)})
    return found


def tree(root: int) -> list[int]:
    """Pids of a process and everything below it that has not ended."""
    return [root, *(each.pid for each in descendants(root) if each.state not in ENDED)]


def send(pids: Iterable[int], number: int) -> None:
    """A signal to each; those that are gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end(process: subprocess.Popen[bytes], patience: float = 15.0, first: Iterable[int] = ()) -> None:
    """Ends a process and everything below it, politely for `patience` seconds, then for good.

    Args:
        first: pids that get the polite signal instead of the process itself (TorchServe's JVM, since its parent
            forwards none).
    """
    before = descendants(process.pid)
    send([process.pid, *(each.pid for each in before)], signal.SIGCONT)  # a paused one would not see the next signal
    send(list(first) or [process.pid], signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    started = {each.pid: each.started for each in (*before, *descendants(process.pid))}
    # a pid that came back as another process has another start
    send((each.pid for each in processes() if started.get(each.pid) == each.started), signal.SIGKILL)
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def end_all() -> int:
    """Kills whatever is still below this process, and reaps it.

    Returns:
        How many are left; zero unless one hangs in the kernel.
    """
    deadline = time.monotonic() + 5
    while True:
        left = descendants(os.getpid())
        send((each.pid for each in left if each.state not in ENDED), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left or time.monotonic() > deadline:
            return len(left)
        time.sleep(0.05)
