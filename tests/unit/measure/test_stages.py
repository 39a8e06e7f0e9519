"""Stage table: two scrapes give milliseconds an image, and a worker's time adds up."""

from __future__ import annotations

import pytest

from measure import stages
from tests.unit.measure.made_up import window


def scrape(decode: float, infer: float, images: int, cpu: bool = True) -> stages.Counters:
    name = "StageCpuSeconds" if cpu else "StageSeconds"
    return stages.scrape(f"""\
# HELP {name} Torchserve prometheus counter metric with unit: s
# TYPE {name} counter
{name}{{ModelName="food_recognizer",Stage="decode",Level="Model",Hostname="pod",}} {decode}
{name}{{ModelName="food_recognizer",Stage="infer",Level="Model",Hostname="pod",}} {infer}
StageSeconds{{ModelName="food_recognizer",Stage="infer",Level="Model",Hostname="pod",}} {infer if not cpu else 99.0}
StageImages{{ModelName="food_recognizer",Level="Model",Hostname="pod",}} {images}
ts_inference_requests_total{{model_name="food_recognizer",model_version="default",hostname="pod",}} 7.0
""")


def test_two_scrapes_give_milliseconds_an_image() -> None:
    found = stages.between(scrape(1.0, 10.0, 500), scrape(3.0, 1.6e1, 1500))
    assert found == {"decode": pytest.approx(2.0), "infer": pytest.approx(6.0)}


def test_wall_time_stands_in_where_there_is_no_cpu_time() -> None:
    first, last = (stages.Counters({}, {"infer": seconds}, images) for seconds, images in ((0.0, 0), (1.0, 100)))
    assert stages.between(first, last) == {"infer": pytest.approx(10.0)}


def test_counters_that_have_not_appeared_yet_start_from_zero() -> None:
    assert stages.between(stages.scrape(""), scrape(1.0, 5.0, 1000)) == {"decode": 1.0, "infer": 5.0}
    assert stages.between(scrape(1.0, 5.0, 1000), scrape(1.0, 5.0, 1000)) == {}


def test_a_workers_time_adds_up() -> None:
    times = {"decode": 2.0, "preprocess": 0.5, "infer": 3.5, "postprocess": 0.1}
    windows = {
        "noop": [window("noop", 2800.0, cpu_seconds={"jvm": 0.4, "worker": 0.2, "other": 0.0, "client": 0.1})],
        "food/openvino": [window("food/openvino", 150.0, stages_ms=times, stage_clock="CPU")],
        "scorer/openvino": [window("scorer/openvino", 140.0, stages_ms={**times, "infer": 4.0}, stage_clock="CPU")],
        "stock": [window("stock", 2.0)]}
    noop, food, scorer, stock = stages.table(windows)
    assert (food.jvm, food.worker, food.protocol, food.client) == (1.0, 8.0, 0.2, 0.2)
    assert food.unexplained == pytest.approx(8.0 - 0.2 - 6.1) and food.head is None
    assert (scorer.infer, scorer.head) == (3.5, 0.5)
    assert scorer.unexplained == pytest.approx(8.0 - 0.2 - 6.6)
    assert noop.unexplained is None and stock.unexplained is None and stock.decode is None


def test_wall_time_explains_no_cpu_time() -> None:
    own = window("food/ipex", 150.0, stages_ms={"decode": 9.0, "infer": 9.0}, stage_clock="wall")
    [row] = stages.table({"food/ipex": [own]})
    assert row.decode == 9.0 and row.unexplained is None


def test_a_students_time_adds_up_as_the_scorers_does_and_its_head_is_unknown() -> None:
    times = {"decode": 2.0, "preprocess": 0.5, "infer": 3.5, "postprocess": 0.1}
    windows = {
        "noop": [window("noop", 2800.0, cpu_seconds={"jvm": 0.4, "worker": 0.2, "other": 0.0, "client": 0.1})],
        "food/openvino": [window("food/openvino", 150.0, stages_ms={**times, "infer": 5.0}, stage_clock="CPU")],
        "swift/openvino": [window("swift/openvino", 150.0, stages_ms=times, stage_clock="CPU")],
        "in-process/openvino": [window("in-process/openvino", 160.0, stages_ms=times, stage_clock="CPU")]}
    _, _, swift, alone = stages.table(windows)
    assert (swift.protocol, swift.infer, swift.head) == (0.2, 3.5, None)
    assert swift.unexplained == pytest.approx(8.0 - 0.2 - 6.1)
    assert alone.protocol is None
