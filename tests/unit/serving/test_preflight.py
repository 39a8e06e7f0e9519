"""serving/preflight.py: everything in one go, in the same order, and no check takes the others down."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import SettingsError
from configs.plan import Plan
from configs.settings import Ports, Settings
from serving import preflight_pod, preflight_probes
from serving.preflight import Start, preflight
from serving.preflight_problem import from_error
from tests.unit.configs.made_up import archive, files

MakePlan = Callable[..., Plan]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A start with nothing wrong, but that nothing is planned."""
    binaries, store, tmp = tmp_path / "bin", tmp_path / "store", tmp_path / "tmp"
    for folder in (binaries, store, tmp):
        folder.mkdir()
    java = binaries / "java"
    java.write_text("#!/bin/sh\necho 'java version \"17\"' >&2\n")
    java.chmod(0o755)
    for name in ("food", "score"):
        archive(store, name, artifact={"runtime": "eager", "batch_size": 1, "max_batch_delay_ms": 5,
                                       "files": files("eager")})
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in Ports.model_fields]
        free = dict(zip(Ports.model_fields, (each.getsockname()[1] for each in sockets), strict=True))
    return Start(settings=Settings.model_validate({"ports": free}), model_store=store, run_dir=tmp_path, tmp=tmp,
                 environment={"PATH": str(binaries)}, torchserve=binaries / "torchserve", python=Path(sys.executable))


def test_nothing_wrong(start: Start) -> None:
    assert preflight(start) == ()


def test_the_light_checks_take_less_than_half_a_second(start: Start) -> None:
    best = 9.0
    for _ in range(5):  # the machine may be busy with other things
        began = time.monotonic()
        preflight(start)
        best = min(best, time.monotonic() - began)
    assert best < 0.5


def test_everything_in_one_go_errors_first_and_in_the_same_order(start: Start, make_plan: MakePlan) -> None:
    plan = make_plan({"food": [(0,)], "score": [(99_999,)]})
    faulty = replace(start, torchserve=None, plan=plan, tmp=start.tmp / "absent" if start.tmp else None,
                     environment=dict(start.environment) | {"JAVA_HOME": "/nowhere"},
                     settings=start.settings.model_copy(update={"bind": "192.0.2.1"}),
                     notes=["environment: TS_CONFIG_FILE=/x is removed: because"])
    (start.model_store / "food.mar").write_bytes(b"PK")
    (start.model_store / "score.mar").write_bytes(b"PK")
    found = preflight(faulty)
    begins = ["there is no torchserve", "TorchServe needs Java", "this archive", "this archive", "ports.inference",
              "ports.metrics", "ports.health", "the folder for temporary files", "score, worker 0", "TS_CONFIG_FILE"]
    assert [problem.what.startswith(words) for problem, words in zip(found, begins, strict=True)] == [True] * 10
    assert [problem.severity for problem in found] == ["error"] * 9 + ["warning"]
    assert preflight(faulty) == found


def test_what_failed_before_comes_first_and_only_once(start: Start) -> None:
    (start.model_store / "food.mar").write_bytes(b"PK")
    [alone] = preflight(start)
    planning = SettingsError(alone.what.partition(": ")[0], where=str(start.model_store / "food.mar"), why=alone.why,
                             remedy=alone.remedy)
    other = SettingsError("no room", where="memory", why="64 MB", remedy="more")
    assert preflight(replace(start, failed=[other, planning])) == (from_error(other), alone)


def test_a_run_folder_that_could_not_be_made(start: Start) -> None:
    gone = replace(start, run_dir=start.run_dir / "absent", tmp=None, failed=[SettingsError("no run folder")],
                   settings=start.settings.model_copy(update={"token_authorization": True}))
    found = [problem.what.split(":")[0] for problem in preflight(gone)]
    assert found == ["no run folder", "token_authorization"]


def test_a_check_that_cannot_be_run_is_a_warning(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(preflight_pod, "ports", broken)
    monkeypatch.setattr(preflight_probes, "java", broken)
    found = preflight(start)
    assert [(each.severity, each.what, each.why) for each in found] == [
        ("warning", "Java could not be checked", "ZeroDivisionError: a bug"),
        ("warning", "ports could not be checked", "ZeroDivisionError: a bug")]


def test_a_check_that_raises_on_purpose_is_an_error(start: Start, make_plan: MakePlan) -> None:
    plan = replace(make_plan({"food": [(0,)]}), launcher=True, torchserve_version="latest")
    [problem] = preflight(replace(start, plan=plan))
    assert problem.severity == "error" and "no TorchServe version" in problem.what


def test_probes_overlap(start: Start, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> list[object]:
        time.sleep(1.0)
        return []

    monkeypatch.setattr(preflight_probes, "launcher", slow)
    monkeypatch.setattr(preflight_probes, "ipex", slow)
    began = time.monotonic()
    assert preflight(replace(start, plan=make_plan({"food": [(0,)]}))) == ()
    assert time.monotonic() - began < 1.9
