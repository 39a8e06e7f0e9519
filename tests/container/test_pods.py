"""One image in pods of several sizes: it plans from the cgroup, serves, drains and dies as a pod should."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from deploy.engines import Engine
from deploy.request import ask, photo
from tests.container.conftest import Container, Run

MODELS = ("food_recognizer", "image_scorer")
CPUS = len(os.sched_getaffinity(0))


def answers(container: Container) -> list[str]:
    return list(ask(f"http://127.0.0.1:{container.inference}", MODELS))


def test_what_the_image_says_of_itself(podman: Engine, image: str) -> None:
    config = json.loads(podman.run("image", "inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"][:3] == ["/usr/bin/tini", "--", "/opt/venv/bin/tscpu"]
    assert config["Labels"]["org.opencontainers.image.title"] == "torchserve-cpu-toolkit"
    health = json.loads(podman.run("image", "inspect", "--format", "{{json .HealthCheck}}", image))
    assert health["Test"][-1].endswith(":8090/ready")


def test_no_compiler_and_no_extras(podman: Engine, image: str) -> None:
    found = podman.run("run", "--rm", "--entrypoint", "sh", image, "-c",
                       "for name in gcc cc make git curl; do command -v $name; done; ls /opt/venv/lib/python3.11/"
                       "site-packages")
    names = found.split()
    assert not {"gcc", "cc", "make", "git", "curl", "pytest", "timm", "nncf", "openvino"} & set(names)


@pytest.mark.parametrize(("options", "budget", "placement", "workers"), [
    (("--cpus", "1"), 1, "shared", [1, 1]),
    (("--cpus", "2", "--memory", "6g"), 2, "", [1, 1]),
    (("--cpuset-cpus", str(CPUS - 1)), 1, "exclusive", [1, 1]),
], ids=["1 CPU", "2 CPUs and 6 GiB", "a cpuset of one CPU"])
def test_p1_the_plan_is_the_pods_and_everything_answers(run: Run, options: tuple[str, ...], budget: int,
                                                        placement: str, workers: list[int]) -> None:
    container = run(*options)
    container.wait_until_ready()
    plan = container.plan()
    assert plan["budget"] == budget
    assert not placement or plan["placement"] == placement
    assert [model["workers"] for model in plan["models"]] == workers
    if "--memory" in options:
        assert plan["pod"]["memory_limit"] == 6 * 2**30
    assert len(answers(container)) == 2
    inspected = container.execute("tscpu", "inspect", "--run-dir", "/run/tscpu")  # raises unless it is clean
    assert "OK" in inspected
    assert container.execute("id", "-u").strip() == "10001"
    with pytest.raises(Exception, match="ead-only"):
        container.execute("touch", "/app/x")


def test_p16_only_three_ports_are_open_to_the_outside(run: Run) -> None:
    container = run("--cpus", "2")
    container.wait_until_ready()
    lines = container.execute("cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()
    listening = [line.split()[1].split(":") for line in lines if line.split()[3] == "0A"]
    assert {int(port, 16) for address, port in listening if not address.strip("0")} == {8080, 8082, 8090}
    assert 8081 in {int(port, 16) for _, port in listening}
    assert container.get("/live") == container.get("/startup") == 200


def test_too_little_memory_is_said_before_anything_starts(run: Run) -> None:
    container = run("--cpus", "1", "--memory", "600m", "--memory-swap", "600m")
    assert container.wait_until_ended(60) != 0
    assert "memory" in container.log().lower()


@pytest.mark.parametrize("attempt", range(3))
def test_sigterm_under_load_loses_no_accepted_request(podman: Engine, run: Run, attempt: int) -> None:
    container = run("--cpus", "2", "--stop-timeout", "60")
    container.wait_until_ready()
    body, lost, done, stopping = photo(), [], [0] * 4, threading.Event()

    def client(index: int) -> None:
        url = f"http://127.0.0.1:{container.inference}/predictions/{MODELS[index % 2]}"
        with httpx.Client(trust_env=False, timeout=60) as session:
            while container.get("/ready") == 200:
                try:
                    answer = session.post(url, content=body, headers={"Content-Type": "image/jpeg"})
                except httpx.HTTPError as error:
                    lost.append(repr(error))
                    return
                if answer.status_code != 200:
                    lost.append(answer.text)
                done[index] += 1
        stopping.set()

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, index) for index in range(4)]
        time.sleep(4)
        podman.run("kill", "--signal", "TERM", container.id)
        for each in clients:
            each.result(timeout=60)
    assert stopping.is_set() and min(done) > 0
    assert lost == []
    assert container.wait_until_ended(60) == 0


def test_p22_a_killed_jvm_ends_the_container(run: Run) -> None:
    container = run("--cpus", "2")
    container.wait_until_ready()
    container.execute("sh", "-c", "kill -9 $(cat /run/tscpu/tmp/.model_server.pid)")
    began = time.monotonic()
    assert container.wait_until_ended(10) != 0
    assert time.monotonic() - began < 5
