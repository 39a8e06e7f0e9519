"""Whether each model has its workers, and when to give up on one.

Only judging lives here: what is seen comes in (the management API's answers, the log's counts, the clock), and what
follows goes out (lines for the log, health, a reason to stop). `supervisor` looks and acts.

A worker that was READY and ends is TorchServe's to start again, however often somebody kills it. A *failed start* is a
worker that ended before it was READY: TorchServe would go on starting it for five minutes and then leave the model
without it for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from configs.plan import ModelPlan
from serving.client import ModelStatus
from serving.health import ModelHealth, State
from serving.logs import Tail

FAILED_STARTS_BEFORE_READY = 3  # a model that never worked
FAILED_STARTS_AFTER_READY = 5  # one that did, and may have met a passing want of memory
UNREGISTERED_LOOKS = 3  # TorchServe registers all archives before its API answers; a few looks in case it changes


@dataclass
class ModelWatch:
    """One planned model over time.

    Args:
        tail: the log.
        alive: whether a process of that pid runs.
        patience: seconds that listed workers may be short of READY, after the model was ready, before it is given up.
    """

    plan: ModelPlan
    tail: Tail
    alive: Callable[[int], bool]
    patience: float
    ready_workers: int = 0
    listed_workers: int | None = None  # None before TorchServe has told
    was_ready: bool = False
    failed_starts: int = 0
    failure: str = ""
    _pids: dict[str, int] = field(default_factory=dict)  # by worker id
    _ready_pids: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)
    _ended_early: int = 0  # failed starts seen as pids that ended
    _log_base: int = 0  # failed starts in the log when the model was ready last
    _overdue_base: int = 0
    _unregistered: int = 0
    _short_since: float | None = None

    @property
    def ready(self) -> bool:
        return self.ready_workers >= self.plan.workers

    @property
    def shortfall(self) -> str:
        """How many workers it has of those that it should have, in words."""
        have = f"{self.plan.name}: {self.ready_workers} of {self.plan.workers} workers are ready"
        if self.listed_workers is not None and self.ready_workers == self.listed_workers < self.plan.workers:
            have += (f", and TorchServe has no more: does `models` in config.properties name {self.plan.name} with "
                     f"version {self.plan.version}?")
        return have

    def health(self) -> ModelHealth:
        """The model as probes see it, as long as the server is neither draining nor failed."""
        state: State = "ready" if self.ready else "starting"
        return ModelHealth(self.plan.name, self.ready_workers, self.plan.workers, state)

    def see(self, status: ModelStatus | None, now: float) -> tuple[str, ...]:
        """Takes one look in; None when TorchServe has no such model. Returns what is worth a line of the log."""
        if status is None:
            self.ready_workers = 0
            self._unregistered += 1
            if self._unregistered >= UNREGISTERED_LOOKS and not self.was_ready:
                self.failure = (f"TorchServe has not registered {self.plan.name}: its archive {self.plan.archive} is "
                                "missing or broken")
            return ()
        self._unregistered = 0
        lines = self._see_workers(status)
        before, was_ready = self.ready_workers, self.ready
        self.ready_workers, self.listed_workers = status.ready_workers, len(status.workers)
        if self.ready_workers != before or self.ready != was_ready:
            lines.append(f"{self.plan.name}: {self.ready_workers} of {self.plan.workers} workers ready")
        self._judge(status, now)
        return tuple(lines)

    def _see_workers(self, status: ModelStatus) -> list[str]:
        lines: list[str] = []
        for worker in status.workers:
            if worker.pid <= 0:
                continue
            known = self._pids.get(worker.id)
            self._pids[worker.id] = worker.pid
            if known is not None and known != worker.pid:
                if known not in self._ended:
                    lines.append(self._end_of(worker.id, known))
                # a pid may come back as another process, perhaps at once
                self._ended -= {known, worker.pid}
                self._ready_pids -= {known, worker.pid}
            if worker.ready:
                self._ready_pids.add(worker.pid)
            if worker.pid not in self._ended and not self.alive(worker.pid):
                self._ended.add(worker.pid)
                lines.append(self._end_of(worker.id, worker.pid))
        return lines

    def _end_of(self, worker: str, pid: int) -> str:
        overdue = self.tail.overdue(self.plan.name, self.plan.version)
        if pid not in self._ready_pids:
            self._ended_early += 1
            return f"{self.plan.name}: worker {worker} (pid {pid}) ended before it was ready"
        why = "ended"
        if overdue > self._overdue_base:
            why = ("was killed by TorchServe, because a request took longer than "
                   f"response_timeout = {self.plan.response_timeout_s} s,")
        return f"{self.plan.name}: worker {worker} (pid {pid}) {why} and is started again"

    def _judge(self, status: ModelStatus, now: float) -> None:
        logged = self.tail.failed_starts(self.plan.name, self.plan.version)
        if self.ready:
            self.was_ready, self._short_since, self.failed_starts = True, None, 0
            self._ended_early, self._log_base = 0, logged
            self._overdue_base = self.tail.overdue(self.plan.name, self.plan.version)
            return
        # both count the same ends: pids miss a worker that dies before it tells its pid, the log may be turned down
        self.failed_starts = max(self._ended_early, logged - self._log_base)
        limit = FAILED_STARTS_AFTER_READY if self.was_ready else FAILED_STARTS_BEFORE_READY
        if self.failed_starts >= limit:
            self.failure = (f"{self.plan.name} cannot start: {self.failed_starts} starts of its workers failed, "
                            f"{self.ready_workers} of {self.plan.workers} workers are ready")
        # fewer workers than planned, all READY, is somebody's scaling down: not ready, but no failure
        if not self.was_ready or all(worker.ready for worker in status.workers):
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        elif now - self._short_since >= self.patience:
            self.failure = f"short of workers for {self.patience:.0f} s: {self.shortfall}"
