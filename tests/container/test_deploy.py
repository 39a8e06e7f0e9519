"""The same Deployment on this machine: what `make deploy TARGET=podman` and `make undeploy TARGET=podman` run."""

from __future__ import annotations

import socket

import httpx
import pytest

from deploy.engines import Engine

from ..integration.conftest import tscpu


@pytest.fixture(autouse=True)
def ports() -> None:
    for port in (8080, 8090):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on port {port}")


@pytest.mark.parametrize("cpus", ["1", "2"])
def test_both_models_answer_in_a_pod_of_that_size(podman: Engine, image: str, cpus: str) -> None:
    said = tscpu("deploy", "--target", "podman", "--image", image, "--cpus", cpus, timeout=600).stdout
    try:
        for name in ("food_recognizer", "image_scorer"):
            assert f"{name}: 200 in" in said
        assert "OK" in said  # of inspect, in the pod
        health = httpx.get("http://127.0.0.1:8090/ready", trust_env=False).json()
        assert health["ok"] and len(health["models"]) == 2
        [name] = [each for each in podman.run("ps", "--format", "{{.Names}}").split() if each.endswith("-server")]
        quota = podman.run("exec", name, "python3", "-c",
                           "import json; print(json.load(open('/run/tscpu/plan.json'))['pod']['cpu_limit'])")
        assert float(quota) == float(cpus)
    finally:
        ended = tscpu("undeploy", "--target", "podman", timeout=600).stdout
    assert "with exit code 0" in ended
    assert "tscpu" not in podman.run("pod", "ps", "--format", "{{.Name}}")
    assert "tscpu" not in podman.run("volume", "ls", "--format", "{{.Name}}")


def test_undeploying_what_is_not_deployed(podman: Engine) -> None:
    assert "nothing is deployed" in tscpu("undeploy", "--target", "podman", timeout=600).stdout
