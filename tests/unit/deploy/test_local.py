"""The Deployment under podman: what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import SettingsError
from deploy import local
from deploy.engines import Engine
from deploy.workload import read_case
from tests.unit.deploy.stored import of_kind, stored


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that knows of nothing, and writes down what it was asked."""
    path = tmp_path / "podman"
    path.write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/calls\ncase $2 in exists) exit 1;; esac\n")
    path.chmod(0o755)
    monkeypatch.setattr(local, "find_engine", lambda *_: Engine(str(path), {"PATH": "/usr/bin:/bin"}))
    monkeypatch.setattr(local, "MANIFEST", tmp_path / "podman.yaml")
    return tmp_path / "calls"


def up(name: str = "local") -> None:
    local.up(read_case(stored(name), None), None, [], lambda _line: None)


def test_an_overlay_whose_ports_would_be_open_to_everybody(podman: Path) -> None:
    with pytest.raises(SettingsError, match="not published on this machine"):
        up("shared-node")
    assert not podman.exists()


def test_one_port_too_many(podman: Path) -> None:
    objects = stored("local")
    of_kind(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"].append({"containerPort": 8082})
    with pytest.raises(SettingsError, match="8082 would be open to everybody"):
        local.up(read_case(objects, None), None, [], lambda _line: None)
    assert not podman.exists()


def test_an_image_that_podman_has_not_got(podman: Path) -> None:
    with pytest.raises(SettingsError, match="no such image") as caught:
        up()
    assert caught.value.where == "localhost/torchserve-cpu-toolkit:0.1.0"
    assert podman.read_text() == "image exists localhost/torchserve-cpu-toolkit:0.1.0\n"


def test_a_pod_that_was_never_made_is_no_obstacle(podman: Path) -> None:
    said: list[str] = []
    local.MANIFEST.write_text((Path(__file__).parent / "rendered" / "local.yaml").read_text())
    local.down(said.append)
    assert said == [] and not local.MANIFEST.exists()
    local.down(said.append)
    assert said == ["nothing is deployed here"]
