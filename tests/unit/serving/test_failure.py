"""serving/failure.py: the last words name the cause, and nothing but the cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.plan import Plan
from serving.client import ModelStatus
from serving.failure import Failure, explain
from serving.logs import Tail
from serving.watch import ModelWatch

MakePlan = Callable[..., Plan]
MakeStatus = Callable[..., ModelStatus]
EXCERPTS = Path(__file__).parent / "excerpts"


def tail_of(name: str) -> Tail:
    tail = Tail()
    for line in (EXCERPTS / f"{name}.txt").read_text().splitlines():
        tail.feed(line)
    return tail


@pytest.fixture
def watch(make_plan: MakePlan, make_status: MakeStatus, request: pytest.FixtureRequest) -> ModelWatch:
    found = ModelWatch(make_plan({request.param: [(0,)]}).models[0], Tail(), lambda pid: True, 60.0)
    found.see(make_status(request.param, ("9000", 10, "UNLOADING")), 0.0)
    return found


@pytest.mark.parametrize("watch", ["bad"], indirect=True)
def test_model_to_blame_is_told_with_its_exception(watch: ModelWatch) -> None:
    lines = explain(Failure("bad cannot start", (watch,)), tail_of("raises_in_initialize"))
    assert lines[:2] == ("bad cannot start", "the last exception of a worker of bad:")
    assert lines[-1] == "    ValueError: weights do not fit the network: expected 1280 features, found 512"


@pytest.mark.parametrize("watch", ["badrt"], indirect=True)
def test_exception_of_another_model_is_not_pinned_on_this_one(watch: ModelWatch) -> None:
    """Where the log's pattern has no thread, the report says that it cannot tell."""
    tail = Tail()
    for line in (EXCERPTS / "raises_in_initialize.txt").read_text().splitlines():
        tail.feed(re.sub(r"(\[\w+ ?\]) \S+ ", r"\1 ", line))
    lines = explain(Failure("badrt cannot start", (watch,)), tail)
    assert "of badrt or another model" in lines[1]
    assert lines[-1].strip().startswith("ValueError")
    named = explain(Failure("badrt cannot start", (watch,)), tail_of("raises_in_initialize"))
    assert not any("ValueError" in line for line in named)


@pytest.mark.parametrize("watch", ["badkill"], indirect=True)
def test_killed_worker_has_no_exception_and_that_is_said(watch: ModelWatch) -> None:
    lines = explain(Failure("badkill cannot start", (watch,)), tail_of("killed_in_initialize"))
    assert "holds no exception of a worker of badkill" in lines[1]
    assert "    Load model failed: badkill, error: Worker died." in lines


def test_server_that_refuses_its_configuration() -> None:
    assert explain(Failure("TorchServe ended unasked"), tail_of("bad_number")) == (
        "TorchServe ended unasked", "the last lines of the log that speak of trouble:",
        '    Invalid configuration: For input string: "1oo"')


def test_server_that_was_killed() -> None:
    tail = Tail()
    tail.feed("Model server started.")
    lines = explain(Failure("TorchServe ended unasked: the JVM ended"), tail)
    assert "out of memory" in lines[1]
    assert lines[-1] == "    Model server started."


def test_log_is_left_out_where_it_tells_nothing() -> None:
    assert explain(Failure("no key\n  why: expired", log_tells=False), tail_of("bad_number")) == \
        ("no key", "  why: expired")
