"""Starting, placing, dying and stopping, with the real TorchServe."""

from __future__ import annotations

import os
import shutil
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from .conftest import Server, command_line, plan_of, tscpu, wait_for

Start = Callable[..., Server]
BOTH = {"models": {"food_recognizer": {}, "image_scorer": {}}}


def cpus_of(pid: int) -> set[int]:
    return os.sched_getaffinity(pid)


def test_ready_means_all_workers_and_sigterm_leaves_nothing(start: Start) -> None:
    server = start(**BOTH)
    wait_for(lambda: "started" in server.text() or server.process.poll() is not None, 90, server.text)
    assert not server.ready()
    server.wait_until_ready()
    assert all(len(server.workers(model["name"])) == model["workers"] for model in plan_of(server)["models"])
    if len(os.sched_getaffinity(0)) >= 2:
        places = [cpus_of(pid) for name in BOTH["models"] for pid in server.workers(name)]
        assert all(left.isdisjoint(right) for index, left in enumerate(places) for right in places[index + 1:])
    assert server.inspect().returncode == 0
    assert server.stop(signal.SIGTERM) == 0
    assert server.left_over() == []


def test_a_killed_worker_is_replaced_on_its_own_slot(start: Start) -> None:
    server = start(**BOTH).wait_until_ready()
    victim = server.workers("image_scorer")[0]
    stood = cpus_of(victim)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not server.ready(), 20, server.text)
    server.wait_until_ready()
    replacement = server.workers("image_scorer")[0]
    assert replacement != victim and cpus_of(replacement) == stood
    found = server.inspect()
    assert found.returncode == 0, found.stdout
    assert server.stop(signal.SIGINT) == 0
    assert server.left_over() == []


@pytest.mark.parametrize("victim", ["java", "torchserve"])
def test_a_killed_child_of_the_supervisor_ends_everything(start: Start, store: Path, victim: str) -> None:
    server = start(models={"colours": {}}).wait_until_ready()
    pids = server.left_over()
    pid = server.java() if victim == "java" else next(
        pid for pid in pids if "--foreground" in command_line(pid) and pid != server.process.pid)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    assert server.process.wait(20) == 1
    assert time.monotonic() - began < 6
    assert server.left_over() == []


def test_a_worker_that_cannot_load_ends_in_time_with_its_own_error(start: Start, store: Path, tmp_path: Path) -> None:
    broken = tmp_path / "store"
    broken.mkdir()
    shutil.copy(store / "colours.measured.json", broken)
    with zipfile.ZipFile(store / "colours.mar") as source, zipfile.ZipFile(broken / "colours.mar", "w") as target:
        for name in source.namelist():
            target.writestr(name, b"no network" if name.endswith(".pt") else source.read(name))
    server = start(store=broken)
    assert server.process.wait(120) == 1
    assert "cannot open the network" in server.text()
    assert server.left_over() == []


def test_one_model_on_exclusive_cores_is_pinned_by_the_launcher(start: Start) -> None:
    """cpu_launcher_enable: worker i stands on the i-th core of the plan, and the worker finds itself there."""
    server = start(models={"food_recognizer": {}}).wait_until_ready()
    plan = plan_of(server)
    config = (server.run_dir / "config.properties").read_text()
    if plan["placement"] != "exclusive":
        pytest.skip("this machine is under a quota")
    assert "cpu_launcher_enable=true" in config and "ipex_enable=true" in config
    assert "--core-list" in config
    workers = server.workers("food_recognizer")
    assert len(workers) == plan["budget"]
    planned = sorted(slot["cpus"][0] for slot in plan["models"][0]["slots"])
    assert sorted(min(cpus_of(pid)) for pid in workers) == planned
    assert server.text().count("already pinned there") == len(workers), server.text()
    found = server.inspect()
    assert found.returncode == 0, found.stdout


def test_without_java_there_is_one_clear_line(tmp_path: Path, store: Path) -> None:
    done = tscpu("serve", "--model-store", store, "--run-dir", tmp_path / "run", check=False,
                 env={**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""})
    assert done.returncode == 1
    assert "Java" in done.stdout and "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def one_cpu_quota() -> Iterator[Path]:
    """A real CPU quota of one CPU, where cgroup v1 lets this process make one."""
    group = Path("/sys/fs/cgroup/cpu/tscpu-test-quota")
    try:
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_quota_us").write_text("100000")
    except OSError as error:
        pytest.skip(f"no cgroup v1 CPU controller to write to: {error}")
    yield group
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def test_under_a_quota_of_one_cpu_each_model_has_one_thread(start: Start, one_cpu_quota: Path) -> None:
    join = ("sh", "-c", f"echo $$ > {one_cpu_quota}/cgroup.procs; exec \"$@\"", "sh")
    server = start(prefix=join, **BOTH).wait_until_ready()
    plan = plan_of(server)
    assert plan["budget"] == 1 and plan["placement"] == "shared" and plan["spin"] is False
    assert all((model["workers"], model["threads"]) == (1, 1) for model in plan["models"])
    found = server.inspect()
    assert found.returncode == 0, found.stdout
    assert "CFS throttling since its group was made" in found.stdout, found.stdout
    assert "CFS throttling in the last" in server.inspect().stdout
    metrics = httpx.get(server.url("health", "/metrics"), timeout=5, trust_env=False).text
    assert "tscpu_cpu_limit_cpus 1.0" in metrics
    throttled = next(line for line in metrics.splitlines() if line.startswith("tscpu_cfs_throttled_seconds_total "))
    assert float(throttled.split()[1]) > 0  # two workers and a JVM have started on one CPU
    assert server.stop() == 0
    assert server.left_over() == []


def test_a_second_server_from_the_same_folder_is_refused(start: Start, store: Path) -> None:
    server = start(models={"colours": {}}).wait_until_ready()
    done = tscpu("serve", "--model-store", store, "--run-dir", server.run_dir, check=False)
    assert done.returncode == 2 and "already" in done.stderr
    assert server.ready()


def test_health_port_tells_live_from_ready(start: Start) -> None:
    server = start(models={"colours": {}})
    wait_for(lambda: httpx_status(server, "/live") == 200, 90, server.text)
    assert httpx_status(server, "/ready") == 503
    server.wait_until_ready()
    assert httpx_status(server, "/startup") == 200
    assert httpx_status(server, "/nowhere") == 404


def httpx_status(server: Server, path: str) -> int:
    try:
        return httpx.get(server.url("health", path), timeout=2, trust_env=False).status_code
    except httpx.HTTPError:
        return 0
