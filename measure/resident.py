"""The servers of one group, all of them in memory while each in turn is measured.

An idle server must not disturb the one that is measured: its CPU time during others' windows is counted, and beyond
IDLE_LIMIT the idle ones are paused (SIGSTOP) from then on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from configs.errors import ServerError
from measure.archives import Store
from measure.bodies import Body
from measure.machine import available_memory
from measure.processes import ROLES, cpu_by_role, send, tree, workers
from measure.servers import Server, start
from measure.setups import Setup

IDLE_LIMIT = 0.02  # of the pod's CPU, all idle servers together
RESERVE_BYTES = 600_000_000
SETTLED_SHARE, SETTLE_LOOK_SECONDS, SETTLE_SECONDS = 0.04, 0.3, 60.0


class Resident:
    """Started servers by name, with their CPU times.

    Args:
        cores: CPUs of the pod: what shares are shares of.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.servers: dict[str, list[Server]] = {}
        self.pausing = False

    def start(self, setup: Setup, store: Store, run: Path, body: Body) -> dict[str, object]:
        """Starts a setup's server and waits until it is ready.

        Returns:
            What the report says of it: workers with their CPUs, the fall of available memory, seconds to ready.

        Raises:
            ServerError: it cannot start, or memory has become scarce.
        """
        before, began = available_memory(), time.monotonic()
        self.servers[setup.server] = []
        started = start(setup, store, run, body)
        self.servers[setup.server] = started
        for each in started:
            each.wait_until_ready()
        left = available_memory()
        if left < RESERVE_BYTES:
            raise ServerError("memory has run short", where=setup.name, why=f"{left / 2**30:.1f} GiB are left",
                              remedy="choose fewer setups with --setups, or stop what else runs here")
        found = [worker for each in started for worker in workers(each.process.pid)]
        if setup.kind == "in-process":
            found = [{"pid": each.process.pid, "cpus": sorted(os.sched_getaffinity(each.process.pid))}
                     for each in started]
        return {"workers": found, "memory_gib": round((before - left) / 2**30, 2),
                "ready_seconds": round(time.monotonic() - began, 1)}

    def stop(self) -> None:
        """Ends all of them, also those that are still starting."""
        for started in self.servers.values():
            for each in started:
                each.stop()
        self.servers.clear()

    def usage(self) -> dict[str, dict[str, float]]:
        """CPU seconds so far, by server and role."""
        roots = {each.name: each.process.pid for started in self.servers.values() for each in started}
        trees = cpu_by_role(roots)
        return {name: {role: sum(trees[each.name][role] for each in started) for role in ROLES}
                for name, started in self.servers.items()}

    def focus(self, server: str) -> None:
        """The one that is measured runs; if idle ones have to be paused, all others do not."""
        for name, started in self.servers.items():
            for each in started:
                stop = self.pausing and name != server
                if each.paused != stop:
                    send(tree(each.process.pid), signal.SIGSTOP if stop else signal.SIGCONT)
                    each.paused = stop

    def settle(self, server: str) -> None:
        """Waits until a server has nothing left to do.

        TorchServe computes requests whose client has gone, so what a window leaves in the queue would fall into the
        next one: eight requests of a stock server are several seconds.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        before = _total(self.usage()[server])
        while time.monotonic() < deadline:
            time.sleep(SETTLE_LOOK_SECONDS)
            now = _total(self.usage()[server])
            if (now - before) / SETTLE_LOOK_SECONDS <= SETTLED_SHARE * self.cores:
                return
            before = now

    def check_alive(self, setups: Sequence[Setup]) -> None:
        """
        Raises:
            ServerError: a server has ended.
        """
        for setup in setups:
            for each in self.servers[setup.server]:
                if each.process.poll() is not None:
                    raise each.failure(f"{setup.name} has ended while it was measured")

    def idle_share(self, seconds: float) -> float:
        """What all of them together take of the pod's CPU while nobody asks any."""
        before = self.usage()
        time.sleep(seconds)
        after = self.usage()
        return sum(_total(after[name]) - _total(before[name]) for name in after) / (seconds * self.cores)


def _total(roles: dict[str, float]) -> float:
    return sum(roles.values())
