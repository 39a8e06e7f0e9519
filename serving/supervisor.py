"""TorchServe's life in a pod: started, watched until it serves, drained when asked to stop, and ended whole.

What happens when lives here. How it is done lives beside it: `tree` (processes), `output` and `logs` (what TorchServe
says), `watch` (when a model is ready or given up), `drain` (when the server is idle), `health` (probes), `failure`
(the last words).

TorchServe needs this because its own parent process swallows SIGTERM and always exits 0, because its /ping is true
before a model is loaded and its workers are restarted in vain for minutes, and because its JVM resets every connection
when it is told to stop.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from configs.errors import ServerError
from configs.plan import Plan
from configs.topology import read_topology
from serving.audit import audit
from serving.client import Client, ModelStatus, UnauthorizedError, UnknownModelError
from serving.drain import Work, settle_seconds
from serving.failure import Failure, explain
from serving.health import Health, HealthServer, ModelHealth, State
from serving.logs import Tail
from serving.output import Forwarder
from serving.pod_metrics import exposition
from serving.processes import alive
from serving.tree import Tree
from serving.watch import ModelWatch

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
JVM_SECONDS = 6.0  # for the JVM's own end: it takes 2.5 to 4, and for ever while a gRPC call is open
KILL_SECONDS = 1.0  # for SIGKILL and reaping
FAILED_JVM_SECONDS = 3.0  # the same when something has failed: all is gone within 5 s
ANSWER_SECONDS = 2.0  # that one look at the management API may take
LOOK_SECONDS = 0.3  # between looks while a model is short of workers
READY_LOOK_SECONDS = 1.0  # between looks otherwise
DRAIN_LOOK_SECONDS = 0.1
REFUSALS = 5  # of the key, one after the other
UNHEARD_SECONDS = 5.0  # without an answer of the management API, after which the pod is not ready
HUNG_SECONDS = 60.0  # the same, after which TorchServe is given up


class Supervisor:
    """One run of TorchServe. All children of this process belong to it while `run` runs.

    Args:
        command: `torchserve --start --foreground ...`, with absolute paths.
        environment: the command's whole environment.
        plan: the models to wait for.
        inference_port, management_port: TorchServe's, on this host.
        health_port: for /live, /startup and /ready; 0 for any free one.
        notice_seconds: for which requests are served on after a stop signal, until no endpoint sends any.
        grace_seconds: from a stop signal to the end of everything (terminationGracePeriodSeconds). The last seconds
            of it are kept for ending the JVM.
        startup_seconds: within which all models must be ready once.
        run_dir: the command's working directory, made if it is missing: TorchServe writes its key file there.
        echo: prints a line at once (`print` with flush=True): TorchServe's own lines go to standard output between.
        health_address: IP address for the health port.
        key_file: TorchServe's key_file.json, where token authorization is on.
    """

    def __init__(self, command: list[str], environment: dict[str, str], plan: Plan, inference_port: int,
                 management_port: int, health_port: int, notice_seconds: float, grace_seconds: float,
                 startup_seconds: float, run_dir: Path, echo: Callable[[str], object], *,
                 health_address: str = "0.0.0.0", key_file: Path | None = None) -> None:
        self.command, self.environment, self.plan, self.run_dir = command, environment, plan, run_dir
        self.inference_port, self.health_address, self.health_port = inference_port, health_address, health_port
        self.notice_seconds, self.grace_seconds = notice_seconds, grace_seconds
        self.startup_seconds = startup_seconds
        self._echo = echo
        self._client = Client(f"http://127.0.0.1:{inference_port}", f"http://127.0.0.1:{management_port}",
                              ANSWER_SECONDS, key_file=key_file)
        self._tail = Tail()
        self._watches = tuple(ModelWatch(model, self._tail, alive, startup_seconds) for model in plan.models)
        self._stop_signals: list[int] = []
        self._asked_at = 0.0  # when the first of them came
        self._statuses: dict[str, ModelStatus] | None = None  # as TorchServe answered last; None while it does not
        self._topology = read_topology()
        self._wake: SimpleQueue[None] = SimpleQueue()  # the one queue that a signal handler may safely put into
        self._silent_since: float | None = None
        self._started = self._ready = self._failed = False
        # of the grace period, kept for the end; a short one is halved
        self._reserve = min(JVM_SECONDS + KILL_SECONDS, grace_seconds / 2)

    def run(self) -> int:
        """Runs TorchServe until it is told to stop or fails. To be called once, from the main thread.

        Returns:
            The exit code: 0 after SIGTERM, SIGINT or SIGHUP; 1 when TorchServe ended or failed.

        Raises:
            ServerError: it could not even be started.
        """
        self.run_dir.mkdir(parents=True, exist_ok=True)
        for stale in (self.run_dir / "workers").glob("*.json"):
            stale.unlink(missing_ok=True)
        with (self._signals(), self._client,
              HealthServer(self.health_address, self.health_port, self.health, self.metrics) as server):
            self.health_port = server.port
            tree = Tree()
            output = Forwarder(tree.start(self.command, self.environment, self.run_dir), self._tail)
            failure: Failure | None = Failure("a bug in the supervisor")
            try:
                workers = ", ".join(f"{model.workers} of {model.name}" for model in self.plan.models)
                self._say(f"started {Path(self.command[0]).name} (pid {tree.command}); waiting for workers: {workers}")
                failure = self._serve(tree) or self._drain(tree)
            finally:
                self._failed = failure is not None
                self._end(tree)
                output.join(1.0)
            if failure:
                for line in explain(failure, self._tail):
                    self._say(line)
                return 1
            self._say("stopped")
            return 0

    def health(self) -> Health:
        """The pod at this moment; may be asked from any thread."""
        state: State = ("failed" if self._failed else "draining" if self._stop_signals
                        else "ready" if self._ready else "starting")
        models = tuple(watch.health() for watch in self._watches)
        if state in ("draining", "failed"):
            models = tuple(ModelHealth(model.name, model.ready, model.planned, state) for model in models)
        return Health(live=not self._failed, started=self._started, ready=state == "ready", state=state, models=models)

    def metrics(self) -> bytes:
        """The pod at this moment, for Prometheus; may be asked from any thread."""
        statuses = self._statuses
        found = None if statuses is None else audit(self.plan, list(statuses.values()), run_dir=self.run_dir,
                                                    topology=self._topology)
        return exposition(self.plan, self.health(), found)

    def _serve(self, tree: Tree) -> Failure | None:
        """Until a stop signal comes, or something fails."""
        begin, refused = time.monotonic(), 0
        while not self._stop_signals:
            if ended := tree.ended():
                return Failure(f"TorchServe ended unasked: {ended}")
            try:
                self._look(time.monotonic())
                refused = 0
            except UnauthorizedError as error:
                refused += 1  # at first, the key file may still be that of an earlier run
                if refused >= REFUSALS:
                    return Failure(str(error), log_tells=False)
            now = time.monotonic()
            for watch in self._watches:
                if watch.failure:
                    return Failure(watch.failure, (watch,))
            self._tell_ready(now, begin)
            if not self._started and now - begin >= self.startup_seconds:
                short = tuple(watch for watch in self._watches if not watch.ready)
                each = "; ".join(watch.shortfall for watch in short)
                return Failure(f"not ready after {self.startup_seconds:g} s; {each}", short)
            if self._started and self._silent(now) >= HUNG_SECONDS:
                return Failure(f"TorchServe has not answered for {HUNG_SECONDS:.0f} s")
            self._wait(READY_LOOK_SECONDS if self._ready else LOOK_SECONDS)
        return None

    def _look(self, now: float) -> None:
        statuses = self._statuses = self._ask()
        if statuses is None:
            self._silent_since = now if self._silent_since is None else self._silent_since
            return
        self._silent_since = None
        for watch in self._watches:
            for line in watch.see(statuses.get(watch.plan.name), now):
                self._say(line)

    def _ask(self) -> dict[str, ModelStatus] | None:
        """The planned models that TorchServe has; None while it does not answer."""
        found = {}
        for model in self.plan.models:
            try:
                found[model.name] = self._client.describe(model.name)
            except UnknownModelError:
                continue
            except UnauthorizedError:
                raise
            except ServerError:
                return None
        return found

    def _tell_ready(self, now: float, begin: float) -> None:
        silent = self._silent(now) >= UNHEARD_SECONDS
        ready = not silent and all(watch.ready for watch in self._watches)
        if ready and not self._ready:
            self._say("ready again" if self._started else f"ready after {now - begin:.1f} s")
        elif self._ready and not ready:
            self._say("not ready: " + ("TorchServe does not answer" if silent else "waiting for workers"))
        self._ready, self._started = ready, self._started or ready

    def _silent(self, now: float) -> float:
        return 0.0 if self._silent_since is None else now - self._silent_since

    def _drain(self, tree: Tree) -> Failure | None:
        """Serves on until nobody sends requests and none is in hand, or time is up; returns what failed meanwhile."""
        name = signal.Signals(self._stop_signals[0]).name
        if not self._started:
            self._say(f"{name} before it was ready: stopping")
            return None
        deadline = self._asked_at + self.grace_seconds - self._reserve
        notice_end = min(self._asked_at + self.notice_seconds, deadline)
        self._say(f"{name}: draining; serving on for {self.notice_seconds:g} s, then until idle, "
                  f"{self.grace_seconds - self._reserve:g} s at most; a second signal skips this")
        work, idle_since, doing = Work(self.inference_port), None, "what is"
        while True:
            if ended := tree.ended():
                return Failure(f"TorchServe ended while it was draining: {ended}")
            if len(self._stop_signals) > 1:
                self._say("second signal: stopping at once")
                return None
            now = time.monotonic()
            if now >= deadline:
                self._say(f"the grace period is over, with {doing or 'nothing'} in hand: stopping")
                return None
            if now >= notice_end:
                doing = self._doing(work)
                if doing:
                    idle_since = None
                elif idle_since is None:
                    idle_since = now
                elif now - idle_since >= settle_seconds(self.plan):
                    self._say(f"idle after {now - self._asked_at:.1f} s: stopping")
                    return None
            self._wait(DRAIN_LOOK_SECONDS)

    def _doing(self, work: Work) -> str:
        try:
            statuses = self._ask()
        except UnauthorizedError:
            statuses = None
        return "an unknown number of requests" if statuses is None else work.in_hand(list(statuses.values()))

    def _end(self, tree: Tree) -> None:
        signals = len(self._stop_signals)
        if self._failed:
            patience = FAILED_JVM_SECONDS
        else:
            # SIGKILL and reaping need a moment of their own before the grace period is over
            left = self._asked_at + self.grace_seconds - KILL_SECONDS - time.monotonic()
            patience = min(JVM_SECONDS, max(left, 0.0))
        stuck = tree.end(patience, hurry=lambda: len(self._stop_signals) > signals)
        if stuck:
            self._say(f"{stuck} processes do not end: the kernel holds them")

    def _say(self, line: str) -> None:
        with suppress(OSError):  # the terminal or pipe may be gone; the processes are still to be looked after
            self._echo(line)

    def _wait(self, seconds: float) -> None:
        """Until something happens, at most so long."""
        try:
            self._wake.get(timeout=seconds)
            while True:
                self._wake.get_nowait()
        except Empty:
            pass

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(number: int, _frame: FrameType | None) -> None:
            if not self._stop_signals:
                self._asked_at = time.monotonic()
            self._stop_signals.append(number)
            self._wake.put(None)

        def child(_number: int, _frame: FrameType | None) -> None:
            self._wake.put(None)

        # under nohup, a hangup is not to stop anything
        stopping = [number for number in STOPPING
                    if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, stop) for number in stopping}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, child)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
