"""The report: everything in it is worked out from the record."""

from __future__ import annotations

import json
from typing import Any

from measure.report import render, summary
from measure.rounds import failures
from tests.unit.measure.made_up import record, window

WINDOWS = [window(setup, rate * (1 + number / 10), number) for number in range(2) for setup, rate in
           (("stock", 2.0), ("intel", 10.0), ("food/ipex", 30.0), ("scorer/ipex", 29.0), ("in-process/ipex", 32.0))]


def test_a_record_is_rendered() -> None:
    text = render(json.loads(json.dumps(record(WINDOWS))))
    assert "| food recognizer, best exact fp32: against stock | food/ipex | stock | ≥ 10× | 15.0 (15.0–15.0)× |" in text
    assert "**PASS**" in text and "**NOT MEASURED**" in text
    assert "| food/ipex | 31.5 (30.0–33.0) | 10.0 | 30.0 | 15.0 (15.0–15.0)× | 3.00 (3.00–3.00)× |" in text
    assert "A CPU (avx2)" in text and "640×427 JPEG of 197 kB" in text
    assert "`food/openvino` is left out: openvino not installed." in text
    assert "40 answers were checked under load, 0 were wrong." in text
    assert "Not complete" not in text


def test_an_interrupted_run_says_so_and_its_summary_is_plain_numbers() -> None:
    partial = {**record(WINDOWS[:3]), "complete": False}
    assert "Not complete" in render(partial)
    found = summary(partial)
    assert json.loads(json.dumps(found)) == found
    assert found["rates"]["stock"] == {"median": 2.0, "min": 2.0, "max": 2.0, "rounds": 1}


def test_invalid_windows_are_shown_and_never_counted() -> None:
    broken = window("food/ipex", 500.0, 1, valid=False, trouble="7 answers with status 503")
    text = render(record([window("food/ipex", 30.0), broken]))
    assert "1 of 2 windows invalid" in text and "500" not in text.partition("## Notes")[0]


def test_wrong_answers_and_setups_without_a_valid_window_are_failures() -> None:
    assert failures(record(WINDOWS)) == []
    bad = [window("food/ipex", 30.0, wrong=["score: 7; 3 is expected"]), window("noop", 1.0, valid=False, trouble="x")]
    assert failures(record(bad)) == ["food/ipex, round 1: a wrong answer: score: 7; 3 is expected",
                                     "noop: no valid window: x"]


def test_an_empty_record_is_rendered_too() -> None:
    assert "NOT MEASURED" in render(record([]))


def with_students(*rates: tuple[str, float], **teachers: str) -> dict[str, Any]:
    found = record([window(setup, rate) for setup, rate in (*rates, ("food/ipex", 30.0), ("scorer/ipex", 20.0))])
    for setup, facts in found["setups"].items():
        if (name := setup.partition("/")[0]) in teachers:
            facts["teacher"] = teachers[name]
    return found


def test_students_are_held_against_the_recognizer_and_their_teachers() -> None:
    found = with_students(("swift/ipex", 60.0), ("swifter/ipex", 90.0), ("other/ipex", 45.0), swift="image_scorer",
                          swifter="swift", other="image_scorer_large")
    text = render(json.loads(json.dumps(found)))
    assert "| swift/ipex | 2.00 (2.00–2.00) | 3.00 (3.00–3.00)× against image_scorer |" in text
    assert "| swifter/ipex | 3.00 (3.00–3.00) | 1.50 (1.50–1.50)× against swift |" in text
    assert "| other/ipex | 1.50 (1.50–1.50) |  |" in text  # its teacher was not measured
    assert "`swift/ipex`: what swift/ipex is" in text
    numbers = summary(found)["students"]
    assert numbers["swift/ipex"]["teacher"] == "image_scorer"
    assert numbers["swift/ipex"]["against_teacher"]["median"] == 3.0
    assert numbers["other/ipex"]["against_teacher"] is None and "scorer/ipex" not in numbers


def test_without_students_nothing_is_said_of_them() -> None:
    assert "## Students" not in render(record(WINDOWS)) and summary(record(WINDOWS))["students"] == {}
