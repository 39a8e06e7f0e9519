"""The promises of serving/supervisor.py, kept with real processes and real signals over a stand-in for TorchServe."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from configs.plan import Plan
from serving.processes import ENDED, command_line, descendants, process

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MARK = "TSCPU_STAND_IN"


class Pod:
    """One supervised stand-in, and what can be asked of it."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.mark = mark
        self.http = httpx.Client(trust_env=False, verify=False, timeout=10)  # loading certificates takes a while
        self.settings = json.loads((folder / "stand_in.json").read_text())
        self.process = subprocess.Popen([sys.executable, str(HERE / "run_supervisor.py"), str(folder)],
                                        env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark}, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def probe(self, path: str) -> int:
        """The status of a probe; 0 when nobody answers."""
        try:
            return self.http.get(f"http://127.0.0.1:{self.settings['health']}{path}").status_code
        except httpx.TransportError:
            return 0

    def wait_until(self, path: str, status: int) -> None:
        assert eventually(lambda: self.probe(path) == status), f"{path} did not become {status}"

    def ready(self) -> Pod:
        self.wait_until("/ready", 200)
        return self

    def predict(self, seconds: float) -> int:
        return self.http.post(f"http://127.0.0.1:{self.settings['inference']}/predictions/food",
                              content=str(seconds)).status_code

    def pid_of(self, role: str) -> int:
        """The parent, the JVM, or a worker that the JVM has started."""
        found = descendants(self.process.pid)
        pid = next(each.pid for each in found if ("parent" if role == "parent" else "jvm") in command_line(each.pid))
        return next(each.pid for each in found if each.parent == pid) if role == "worker" else pid

    def end(self, seconds: float = 5.0) -> tuple[int, str]:
        """The exit code, which must come within so many seconds, and the output."""
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output

    def left(self) -> list[int]:
        """Processes that descend from this pod, wherever they have gone: they inherited the mark."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self.owns(entry)]

    def owns(self, entry: Path) -> bool:
        try:
            return f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.03)
    return True


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


StartPod = Callable[..., Pod]


@pytest.fixture
def start_pod(make_plan: Callable[..., Plan], tmp_path: Path) -> Iterator[StartPod]:
    """Starts a supervised stand-in with one model, "food"; whatever a test leaves is killed."""
    pods: list[Pod] = []

    def start(mode: str = "good", workers: int = 2, notice: float = 0.0, grace: float = 8.0,
              startup: float = 20.0) -> Pod:
        management, inference, health = free_ports(3)
        # named java, as the JVM is; a link, so that Python still finds its library
        (tmp_path / "java").symlink_to(Path(sys.executable).resolve())
        (tmp_path / "stand_in.json").write_text(json.dumps(
            {"mode": mode, "model": "food", "workers": workers, "management": management, "inference": inference,
             "health": health, "notice": notice, "grace": grace, "startup": startup}))
        plan = make_plan({"food": [(number,) for number in range(workers)]})
        (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
        pods.append(Pod(tmp_path, tmp_path.name + str(os.getpid())))
        return pods[-1]

    yield start
    for pod in pods:
        for pid in pod.left():
            os.kill(pid, signal.SIGKILL)
        pod.process.wait()


def test_stop_signal_exits_zero_and_leaves_nothing(start_pod: StartPod) -> None:
    pod = start_pod().ready()
    assert pod.probe("/live") == pod.probe("/startup") == 200
    pod.process.send_signal(signal.SIGTERM)
    code, output = pod.end()
    assert code == 0, output
    assert pod.left() == []
    prefix = "2026-01-31T12:00:00,000 [INFO ] W-9001-food_1.0-stdout MODEL_LOG - "
    assert f"{prefix}Torch worker started.\n" in output, "the server's own lines are passed on as they are"


def test_drain_refuses_readiness_at_once_and_still_answers_what_is_in_hand(start_pod: StartPod) -> None:
    pod = start_pod().ready()
    statuses: list[int] = []
    client = threading.Thread(target=lambda: statuses.append(pod.predict(1.2)))
    client.start()
    time.sleep(0.2)
    pod.process.send_signal(signal.SIGINT)
    pod.wait_until("/ready", 503)
    assert pod.probe("/live") == 200
    client.join()
    code, output = pod.end()
    assert (statuses, code) == ([200], 0), output
    assert "idle after" in output


def test_requests_are_served_while_endpoints_notice(start_pod: StartPod) -> None:
    pod = start_pod(notice=1.0).ready()
    pod.process.send_signal(signal.SIGTERM)
    pod.wait_until("/ready", 503)
    time.sleep(0.6)
    assert pod.predict(0.0) == 200
    assert pod.end()[0] == 0


def test_grace_period_bounds_the_drain(start_pod: StartPod) -> None:
    pod = start_pod(grace=2.0).ready()

    def ask() -> None:
        with suppress(httpx.TransportError):
            pod.predict(30)

    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.2)
    pod.process.send_signal(signal.SIGTERM)
    code, output = pod.end(2.5)
    assert code == 0
    assert "grace period is over, with 1 workers at work" in output
    assert pod.left() == []


def test_second_signal_skips_the_drain(start_pod: StartPod) -> None:
    pod = start_pod(notice=30.0, grace=60.0).ready()
    pod.process.send_signal(signal.SIGTERM)
    pod.wait_until("/ready", 503)
    pod.process.send_signal(signal.SIGTERM)
    code, output = pod.end(2.0)
    assert code == 0
    assert "second signal" in output
    assert pod.left() == []


@pytest.mark.parametrize("role", ["parent", "jvm"])
def test_killed_server_ends_the_pod_with_one_and_leaves_nothing(start_pod: StartPod, role: str) -> None:
    pod = start_pod().ready()
    os.kill(pod.pid_of(role), signal.SIGKILL)
    code, output = pod.end()
    assert code == 1
    assert "TorchServe ended unasked" in output
    assert pod.left() == []


def test_killed_worker_is_started_again_and_readiness_tells(start_pod: StartPod) -> None:
    pod = start_pod().ready()
    killed = pod.pid_of("worker")
    os.kill(killed, signal.SIGKILL)
    pod.wait_until("/ready", 503)
    assert pod.probe("/live") == 200
    pod.wait_until("/ready", 200)
    helper = next(each.pid for each in descendants(pod.process.pid) if each.parent == pod.process.pid
                  and "worker" in command_line(each.pid))  # its parent has gone: it came to the supervisor
    os.kill(helper, signal.SIGKILL)
    assert eventually(lambda: process(helper) is None), "what comes to the supervisor is reaped by it"
    assert all(each.state not in ENDED for each in descendants(pod.process.pid))
    pod.process.send_signal(signal.SIGTERM)
    code, output = pod.end()
    assert code == 0
    assert f"(pid {killed}) ended and is started again" in output
    assert pod.left() == []


def test_model_that_cannot_load_ends_the_pod_with_the_workers_own_exception(start_pod: StartPod) -> None:
    pod = start_pod(mode="raises")
    code, output = pod.end()
    assert code == 1
    lines = [line.removeprefix("tscpu: ").strip() for line in output.splitlines() if line.startswith("tscpu: ")]
    assert any(line.startswith("food cannot start:") and line.endswith("0 of 2 workers are ready") for line in lines)
    assert lines[-1] == "ValueError: the weights do not fit the network"
    assert pod.left() == []


def test_never_ready_ends_the_pod_after_its_startup_time(start_pod: StartPod) -> None:
    pod = start_pod(mode="hangs", startup=1.0)
    code, output = pod.end()
    assert code == 1
    assert "not ready after 1 s; food: 0 of 2 workers are ready" in output
    assert pod.left() == []


def test_stop_signal_before_ready_stops_at_once(start_pod: StartPod) -> None:
    pod = start_pod(mode="hangs", notice=30.0, grace=60.0)
    pod.wait_until("/live", 200)
    assert pod.probe("/startup") == pod.probe("/ready") == 503
    pod.process.send_signal(signal.SIGTERM)
    assert pod.end(2.0)[0] == 0
    assert pod.left() == []
