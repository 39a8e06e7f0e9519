"""serving/throttling.py: what the quota did between two looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from configs.errors import MachineError
from configs.plan import Plan
from serving import throttling
from serving.throttling import look


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.stat"
    path.write_text("nr_periods 100\nnr_throttled 40\nthrottled_time 2000000000\n")
    return path


@pytest.fixture
def plan(make_plan: Callable[..., Plan], stat: Path) -> Plan:
    made = make_plan({"food": [(0,)]})
    return replace(made, pod=replace(made.pod, cpu_limit=1.0, cpu_stat=str(stat)))


def test_without_a_quota_there_is_nothing_to_say(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    assert look(make_plan({"food": [(0,)]}), tmp_path) is None


def test_the_first_look_counts_from_the_groups_making(plan: Plan, tmp_path: Path, stat: Path) -> None:
    found = look(plan, tmp_path)
    assert found is not None
    assert found.sentence == ("CFS throttling since its group was made: 40 of 100 periods (40.0 %), threads stopped "
                              f"for 2.00 s; {stat}")


def test_the_next_look_counts_from_the_last(plan: Plan, tmp_path: Path, stat: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling.time, "time", lambda: 1000.0)
    look(plan, tmp_path)
    monkeypatch.setattr(throttling.time, "time", lambda: 1010.0)
    stat.write_text("nr_periods 150\nnr_throttled 50\nthrottled_usec 2500000\n")
    found = look(plan, tmp_path)
    assert found is not None
    assert found.sentence == ("CFS throttling in the last 10.0 s: 10 of 50 periods (20.0 %), threads stopped "
                              f"for 0.50 s (5.0 % of the time); {stat}")


def test_another_group_under_the_same_name_starts_anew(plan: Plan, tmp_path: Path, stat: Path) -> None:
    look(plan, tmp_path)
    stat.write_text("nr_periods 3\nnr_throttled 0\nthrottled_time 0\n")
    found = look(plan, tmp_path)
    assert found is not None and (found.seconds, found.periods) == (None, 3)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"source": "elsewhere"}', '{"source": 1}'])
def test_a_broken_memory_of_the_last_look_is_no_look(plan: Plan, tmp_path: Path, content: str) -> None:
    (tmp_path / throttling.FILE).write_text(content)
    found = look(plan, tmp_path)
    assert found is not None and found.seconds is None


def test_a_group_that_is_gone_is_an_error(plan: Plan, tmp_path: Path, stat: Path) -> None:
    stat.unlink()
    with pytest.raises(MachineError, match=r"cannot read the throttling counters"):
        look(plan, tmp_path)
