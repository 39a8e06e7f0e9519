"""`tscpu serve` finds everything that would fail silently in one go, before a JVM is started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.plan import read_plan
from configs.settings import Ports
from serving.preflight_probes import launcher

from .conftest import ROOT, free_ports, third_model, tscpu, wait_for


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with one small archive, for torch alone."""
    folder = tmp_path_factory.mktemp("small")
    tscpu("build", third_model(tmp_path_factory.mktemp("own") / "colours"), "--model-store", folder)
    return folder


@dataclass
class Attempt:
    """One `tscpu serve` with a Java that writes down what it was asked for."""

    folder: Path
    store: Path

    def __post_init__(self) -> None:
        self.ports = dict(zip(Ports.model_fields, free_ports(len(Ports.model_fields)), strict=True))
        java = self.folder / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f'#!/bin/sh\necho "$@" >> {self.folder}/asked\n. {self.folder}/version\n')
        java.chmod(0o755)
        self.java_says("17.0.9")

    def java_says(self, version: str) -> None:
        (self.folder / "version").write_text(f"echo 'openjdk version \"{version}\"' >&2\n")

    def run(self, *arguments: str, variables: dict[str, str] | None = None,
            **settings: Any) -> subprocess.CompletedProcess[str]:
        serving = self.folder / "serving.yaml"
        serving.write_text(yaml.safe_dump({"ports": self.ports, **settings}))
        return tscpu("serve", *arguments, "--serving", serving, "--model-store", self.store, "--run-dir",
                     self.folder / "run", check=False,
                     env={**os.environ, "JAVA_HOME": str(self.folder / "jdk"), **(variables or {})})

    @property
    def java_was_asked(self) -> str:
        return (self.folder / "asked").read_text().strip()


@pytest.fixture
def attempt(tmp_path: Path, small_store: Path) -> Attempt:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    return Attempt(tmp_path, store)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Another artifact.json in an archive."""
    with zipfile.ZipFile(path) as source:
        contents = {name: source.read(name) for name in source.namelist()}
    artifact = json.loads(contents["artifact.json"])
    change(artifact)
    contents["artifact.json"] = json.dumps(artifact).encode()
    with zipfile.ZipFile(path, "w") as target:
        for name, data in contents.items():
            target.writestr(name, data)


def test_check_of_a_sound_pod(attempt: Attempt) -> None:
    done = attempt.run("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout
    assert attempt.java_was_asked == "-version"


@pytest.mark.parametrize("arguments", [(), ("--check",)], ids=["serve", "check"])
def test_several_faults_are_found_in_one_go_and_no_jvm_is_started(attempt: Attempt, arguments: tuple[str, ...]) -> None:
    """P13, and faults that TorchServe answers with a warning or a late end."""
    attempt.java_says("1.8.0_392")
    rewrite(attempt.store / "colours.mar", lambda artifact: artifact["versions"].update(torch="9.1.0"))
    with socket.create_server(("127.0.0.1", attempt.ports["metrics"])):
        done = attempt.run(*arguments, variables={"TS_CONFIG_FILE": "/etc/old", "TS_JOB_QUEUE_SIZE": "5"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 errors" in done.stdout
    for words in ("too old", "it is Java 8", "built with 9.1.0", "ports.metrics", f"pid {os.getpid()}",
                  "TS_CONFIG_FILE=/etc/old", "TS_JOB_QUEUE_SIZE=5"):
        assert words in done.stdout, words
    assert "TS_CONFIG_FILE" not in done.stderr  # said once
    assert "Traceback" not in done.stderr
    assert attempt.java_was_asked == "-version"


def test_broken_archives_are_all_found_although_nothing_can_be_planned(attempt: Attempt) -> None:
    for name in ("first", "second"):
        shutil.copy(attempt.store / "colours.mar", attempt.store / f"{name}.mar")
        os.truncate(attempt.store / f"{name}.mar", 2000)
    with socket.create_server(("127.0.0.1", attempt.ports["inference"])):
        done = attempt.run()
    assert done.returncode == 1 and "3 errors" in done.stdout, done.stdout + done.stderr
    assert all(words in done.stdout for words in ("first.mar", "second.mar", "ports.inference"))
    assert attempt.java_was_asked == "-version"


def test_a_run_folder_that_cannot_be_made_is_one_finding_of_several(attempt: Attempt) -> None:
    (attempt.folder / "run").write_text("a file")
    with socket.create_server(("127.0.0.1", attempt.ports["health"])):
        done = attempt.run()
    assert done.returncode == 1 and "2 errors" in done.stdout, done.stdout + done.stderr
    assert "the run folder cannot be written" in done.stdout and "ports.health" in done.stdout


def test_a_wrong_serving_file_is_told_at_once(attempt: Attempt) -> None:
    done = attempt.run(nonsense=1)
    assert done.returncode == 2 and "nonsense" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_during_the_preflight_is_obeyed_at_once(attempt: Attempt, number: int) -> None:
    (attempt.folder / "version").write_text("exec sleep 20\n")
    with (attempt.folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "scripts.cli", "serve", "--model-store", str(attempt.store),
                                    "--run-dir", str(attempt.folder / "run")], cwd=ROOT, stdout=log, stderr=log,
                                   env={**os.environ, "JAVA_HOME": str(attempt.folder / "jdk")})
    wait_for((attempt.folder / "asked").exists, 20)
    process.send_signal(number)
    assert process.wait(3) == 0, (attempt.folder / "log").read_text()
    assert attempt.java_was_asked == "-version"


def test_p8_the_real_launcher(attempt: Attempt) -> None:
    """One small model on cores of its own: the launcher that TorchServe would start, with what it would be asked."""
    done = attempt.run("--check", placement="exclusive")
    assert done.returncode == 0, done.stdout + done.stderr
    plan = read_plan(attempt.folder / "run" / "plan.json")
    if not plan.launcher:
        pytest.skip("the launcher is not planned on this machine")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    wrong = type(plan)(**{**vars(plan), "launcher_args": "--core-list 9999 --ncores-per-instance 1"})
    [problem] = launcher(wrong, environment, attempt.folder)
    assert "KeyError: 9999" in problem.why
