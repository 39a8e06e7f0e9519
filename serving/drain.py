"""Whether a TorchServe that is being drained still has work in hand.

Only looking lives here. `supervisor` decides how long to wait for an idle server, and ends it.

TorchServe tells how many requests wait in a model's queue, but not whether a worker holds one: its counters count
requests when they come in and answers of every kind (probes, refusals) in other places, so that no difference of them
means "in flight". The kernel knows: a worker serves its one connection to the JVM from its main thread, in a plain
blocking loop, so a worker without work is a main thread that sits in recv() on that connection. That is one read of
/proc/PID/syscall (a process may read it of its descendants, without any capability), it is right for handlers that
sleep or wait for another server as well as for those that compute, and it needs nothing from the handler. Where the
kernel does not offer the file, a worker is busy while one of its threads runs or its CPU time grows: right for
everything but a handler that waits.

Two places are left. An answer may still be on its way to a slow client, and the JVM resets its connections when it
ends: sockets of the inference port with unsent bytes count as work, and so do unread requests. And a request may be
between those places, in a batch that is being collected for at most max_batch_delay_ms, or in a thread of the JVM: so
the server must look idle for a while (`settle_seconds`). What nobody can see is a request whose body is still being
sent by its client.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from configs.plan import Plan
from serving.client import ModelStatus, WorkerStatus
from serving.processes import PROC, process, threads

SETTLE_SECONDS = 0.5
RECVFROM = {"x86_64": "45", "aarch64": "207"}  # what recv() is to the kernel, by architecture
ESTABLISHED, CLOSE_WAIT, LISTEN = "01", "08", "0A"  # states in /proc/net/tcp


def settle_seconds(plan: Plan) -> float:
    """How long the server has to look idle before it is: longer than any batch is collected."""
    return SETTLE_SECONDS + max((model.max_batch_delay_ms for model in plan.models), default=0) / 1000


class Work:
    """Looks for work in hand, again and again.

    Args:
        inference_port: TCP port of the inference API.
        root: /proc, or what stands for it.
        machine: the kernel's name of the architecture.
    """

    def __init__(self, inference_port: int, root: Path = PROC, machine: str = "") -> None:
        self._port, self._root = inference_port, root
        self._recv = RECVFROM.get(machine or platform.machine(), "")
        self._ticks: dict[int, int] = {}  # CPU time at the last look, by pid

    def in_hand(self, statuses: Sequence[ModelStatus]) -> str:
        """What is still being done, in words; empty when nothing is."""
        queued = sum(status.pending_requests or 0 for status in statuses)
        sockets = self._worker_sockets()
        busy = [worker for status in statuses for worker in status.workers
                if worker.ready and self._is_busy(worker, sockets)]
        unfinished = self._unfinished_connections()
        parts = [(queued, "requests in the queues"), (len(busy), "workers at work"),
                 (unfinished, "connections with bytes to read or send")]
        return ", ".join(f"{count} {what}" for count, what in parts if count)

    def _is_busy(self, worker: WorkerStatus, sockets: dict[str, set[str]]) -> bool:
        waits = self._waits_for_a_request(worker, sockets.get(worker.id, set()))
        return self._computes(worker.pid) if waits is None else not waits

    def _waits_for_a_request(self, worker: WorkerStatus, inodes: set[str]) -> bool | None:
        """Whether the worker's main thread sits in recv() on its own socket; None when the kernel does not tell."""
        folder = self._root / str(worker.pid)
        if not self._recv or not inodes:
            return None
        try:
            call = (folder / "syscall").read_text().split()
            if not call or call[0] != self._recv:
                return False
            link = str((folder / "fd" / str(int(call[1], 16))).readlink())
        except FileNotFoundError:
            return None if folder.exists() else True  # an ended worker holds no request any more
        except ProcessLookupError:
            return True
        except OSError:
            return None
        return link.removeprefix("socket:[").removesuffix("]") in inodes

    def _computes(self, pid: int) -> bool:
        found = process(pid, self._root)
        if found is None:
            return False
        before = self._ticks.get(pid)
        self._ticks[pid] = found.cpu_ticks
        if before is not None and found.cpu_ticks != before:
            return True
        return any(thread.state == "R" for thread in threads(pid, self._root))

    def _worker_sockets(self) -> dict[str, set[str]]:
        """The inodes of the workers' ends of their connections to the JVM, by worker id.

        The id is the number in the socket's path, or the TCP port where TorchServe cannot use Unix sockets.
        """
        found: dict[str, set[str]] = {}
        for fields in self._table("unix"):
            if len(fields) > 7 and ".ts.sock." in fields[-1]:
                found.setdefault(fields[-1].rpartition(".")[2], set()).add(fields[6])
        for fields in self._connections():
            if fields[3] == ESTABLISHED:
                found.setdefault(str(_port(fields[1])), set()).add(fields[9])
        return found

    def _unfinished_connections(self) -> int:
        count = 0
        for fields in self._connections():
            sending, _, receiving = fields[4].partition(":")
            if fields[3] in (ESTABLISHED, CLOSE_WAIT, LISTEN) and _port(fields[1]) == self._port:
                count += int(sending, 16) > 0 or int(receiving, 16) > 0
        return count

    def _connections(self) -> Iterable[list[str]]:
        for name in ("tcp", "tcp6"):
            yield from (fields for fields in self._table(name) if len(fields) > 9)

    def _table(self, name: str) -> list[list[str]]:
        """A table of /proc/net, without its heading; empty where there is none."""
        try:
            return [line.split() for line in (self._root / "net" / name).read_text().splitlines()[1:]]
        except OSError:
            return []


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
