"""What `tscpu deploy` and `tscpu undeploy` promise: checks first, YAML alone on standard output, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from deploy import local
from scripts.cli import application
from tests.unit.deploy.conftest import Pods, StandIn
from tests.unit.deploy.stored import RENDERED, stored


def run(*arguments: object) -> tuple[int, str, str]:
    words = list(map(str, arguments))
    result = CliRunner().invoke(application(words), words)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "no-archives"


def test_a_dry_run_prints_the_yaml_alone_and_applies_nothing(kubectl: StandIn, store: Path) -> None:
    code, out, err = run("deploy", "--dry-run", "--model-store", store)
    assert code == 0 and out == (RENDERED / "shared-node.yaml").read_text()
    assert "0 wrong" in err
    assert [call.split()[0] for call in kubectl.calls] == ["kustomize"]


def test_success(kubectl: StandIn, pods: Pods, store: Path) -> None:
    code, out, _ = run("deploy", "--namespace", "vision", "--model-store", store)
    assert code == 0
    assert "+  name: tscpu" in out and "food_recognizer: 200 in" in out


def test_a_check_that_fails_ends_with_1_before_kubectl_is_asked(kubectl: StandIn, store: Path) -> None:
    kubectl.answers("kustomize", (RENDERED / "shared-node.yaml").read_text().replace("cpu-toolkit:0.1.0",
                                                                                     "cpu-toolkit:latest"))
    code, out, _ = run("deploy", "--model-store", store)
    assert code == 1 and "1 wrong" in out and "latest" in out
    assert [call.split()[0] for call in kubectl.calls] == ["kustomize"]


def test_a_deployment_that_fails_ends_with_2(kubectl: StandIn, store: Path) -> None:
    kubectl.answers("rollout-status", err="error: timed out waiting for the condition\n", code=1)
    code, out, err = run("deploy", "--model-store", store)
    assert code == 2 and "the rollout failed" in err
    assert "CrashLoopBackOff" in out


def test_podman_gets_the_objects_of_its_own_overlay(kubectl: StandIn, store: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl.answers("kustomize", (RENDERED / "local.yaml").read_text())
    seen: list[tuple[list[dict[str, Any]], str | None]] = []
    monkeypatch.setattr(local, "up", lambda case, cpus, *_: seen.append((case.objects, cpus)))
    assert run("deploy", "--target", "podman", "--cpus", "1", "--model-store", store)[0] == 0
    assert seen == [(stored("local"), "1")]


def test_cpus_are_not_for_clusters(kubectl: StandIn) -> None:
    code, _, err = run("deploy", "--cpus", "1")
    assert code == 2 and "--cpus is for podman" in err


def test_undeploy(kubectl: StandIn) -> None:
    code, out, _ = run("undeploy", "--namespace", "vision")
    assert code == 0 and "namespace vision" in out
    assert yaml.safe_load_all(kubectl.given("delete"))
