"""Which container engine is taken, and what it is run with."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from configs.errors import ServerError, SettingsError
from deploy import engines
from deploy.engines import find_engine


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, to be filled by `put`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    return folder


def put(folder: Path, name: str, script: str = "exit 0") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def limit(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (files, files))
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_docker_counts_only_with_a_daemon(path: Path, tmp_path: Path) -> None:
    put(path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(SettingsError, match="no container engine") as caught:
        find_engine("auto", tmp_path)
    assert "Cannot connect" in str(caught.value.why) and "buildah: not installed" in str(caught.value.why)
    put(path, "buildah")
    assert find_engine("auto", tmp_path).name == "buildah"
    put(path, "podman")
    assert find_engine("auto", tmp_path).name == "podman"
    put(path, "docker")
    assert find_engine("auto", tmp_path).name == "docker"


def test_the_wanted_engine_or_none(path: Path, tmp_path: Path) -> None:
    put(path, "podman")
    assert find_engine("podman", tmp_path).name == "podman"
    with pytest.raises(SettingsError, match="works here"):
        find_engine("buildah", tmp_path)
    with pytest.raises(SettingsError, match="no engine 'rkt'"):
        find_engine("rkt", tmp_path)


def test_podman_asks_for_no_more_than_this_process_may_have(path: Path, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    put(path, "podman")
    limit(monkeypatch, 20_000)
    written = Path(find_engine("podman", tmp_path / "new").environment["CONTAINERS_CONF"]).read_text()
    assert 'default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]' in written
    assert 'runtime = "runc"' in written  # no crun on that PATH


@pytest.mark.parametrize("files", [resource.RLIM_INFINITY, engines._WANTED_FILES])
def test_nothing_is_configured_where_nothing_is_short(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      files: int) -> None:
    put(path, "podman")
    limit(monkeypatch, files)
    assert "CONTAINERS_CONF" not in find_engine("podman", tmp_path).environment


def test_a_configuration_of_the_users_own_stays(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(path, "podman")
    limit(monkeypatch, 20_000)
    monkeypatch.setenv("CONTAINERS_CONF", "/mine")
    assert find_engine("podman", tmp_path).environment["CONTAINERS_CONF"] == "/mine"


def test_a_failing_command_is_told_with_its_last_words(path: Path, tmp_path: Path) -> None:
    put(path, "podman", "echo one; echo two >&2; echo >&2; exit 7")
    with pytest.raises(ServerError, match="podman pull failed with exit code 7") as caught:
        find_engine("podman", tmp_path).run("pull", "x")
    assert caught.value.why == "two" and "podman pull x" in str(caught.value.where)
