"""How the image is built, and how its size is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.errors import SettingsError
from deploy import image
from deploy.engines import Engine


def engine(folder: Path, name: str, answers: str = "") -> Engine:
    """A stand-in that writes its arguments down."""
    (folder / name).write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/calls\ncat <<'END'\n{answers}\nEND\n")
    (folder / name).chmod(0o755)
    return Engine(str(folder / name), {"PATH": "/usr/bin:/bin"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = tmp_path / "repository" / "build" / "model-store"
    store.mkdir(parents=True)
    (store / "food.mar").touch()
    return tmp_path / "repository"


def test_an_image_without_archives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no archive") as caught:
        image.build(engine(tmp_path, "podman"), tmp_path, "a:1", {}, [])
    assert "tscpu build" in str(caught.value.remedy)


def test_the_format_that_keeps_the_health_check(tmp_path: Path, root: Path) -> None:
    image.build(engine(tmp_path, "buildah"), root, "a:1", {"BASE": "debian:12"}, ["--isolation=chroot"])
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert "--format docker" in call and "--build-arg BASE=debian:12" in call and "--isolation=chroot" in call
    assert call.endswith(f"--tag a:1 --file {root}/Dockerfile {root}")
    assert "--build-arg REVISION=unknown" in call


def test_layers_are_named_and_summed(tmp_path: Path) -> None:
    rows = [{"size": 5, "CreatedBy": "COPY build/model-store /models"}, {"size": 0, "CreatedBy": "ENV A=b"},
            {"size": 40, "CreatedBy": "COPY dir in /opt/venv"}, {"size": 2, "CreatedBy": "COPY dir in /app"},
            {"size": 30, "CreatedBy": "RUN apt-get install openjdk-17-jre-headless"}, {"size": 20, "CreatedBy": ""}]
    found = image.layers(engine(tmp_path, "podman", json.dumps(rows)), "a:1")
    assert [(layer.what, layer.size) for layer in found] == [
        ("Debian", 20), ("Java, Python, tini, numactl", 30), ("the toolkit", 2), ("Python packages", 40),
        ("archives", 5)]


@pytest.mark.parametrize(("text", "size"), [("7.45 GB", 7_450_000_000), ("12 kB", 12_000), ("5 B", 5), ("?", 0)])
def test_buildahs_sizes(text: str, size: int) -> None:
    assert image._bytes(text) == size
