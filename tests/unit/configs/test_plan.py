"""What `configs.plan` promises: plan.json is read back as it was written, or refused with a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_up import limits, plan, topology

from configs.errors import SettingsError
from configs.plan import FORMAT, Plan, read_plan


@pytest.fixture
def decided() -> Plan:
    machine = topology(sockets=2, cores=4, smt=2)
    return plan(machine, limits(machine, cpus=6.5, memory=10**11, pids=4000), "ab")


def test_a_plan_is_read_back_as_it_was(tmp_path: Path, decided: Plan) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(decided.to_dict(), indent=1))
    assert read_plan(path) == decided
    assert json.loads(path.read_text())["format"] == FORMAT


def test_json_has_what_a_worker_needs(decided: Plan) -> None:
    """A worker reads the file without this package."""
    found = json.loads(json.dumps(decided.to_dict()))["models"][0]
    assert (found["name"], found["threads"], found["slots"][0]["cpus"]) == ("a", 1, [0, 1, 2, 3, 8, 9, 10, 11])


def test_model_by_name(decided: Plan) -> None:
    assert decided.model("b").name == "b"
    with pytest.raises(SettingsError) as caught:
        decided.model("c")
    assert str(caught.value) == "the plan has no model 'c'\n  why: it has a, b"


@pytest.mark.parametrize(("content", "words"), [
    ("", "cannot read the plan"), ("{", "cannot read the plan"), ("[]", "format None"), ("3", "format None"),
    ("{}", "format None"), ('{"format": 0}', "format 0"), (f'{{"format": {FORMAT}}}', "the plan is incomplete")])
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(SettingsError) as caught:
        read_plan(path)
    assert words in str(caught.value)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("change", [
    lambda data: data.pop("pod"), lambda data: data.pop("budget"), lambda data: data.update(new=1),
    lambda data: data.update(models=None), lambda data: data["models"][0].pop("slots"),
    lambda data: data["models"][0]["slots"][0].pop("cpus"), lambda data: data.update(reasons=[1]),
    lambda data: data.update(pod=3)])
def test_an_incomplete_plan_is_refused(tmp_path: Path, decided: Plan, change: Any) -> None:
    data = decided.to_dict()
    change(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(SettingsError, match="the plan is incomplete") as caught:
        read_plan(path)
    assert "write the plan again with `tscpu config`" in caught.value.remedy


def test_a_missing_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the plan"):
        read_plan(tmp_path / "plan.json")
