"""Targets: the right pairs are divided, round by round, and judged by the median."""

from __future__ import annotations

import pytest

from measure.ratios import fastest, rates, ratio
from measure.targets import NOT_MEASURED, PASS, SHORT, evaluate
from tests.unit.measure.made_up import window


def verdicts(windows: list[dict[str, object]]) -> dict[str, str]:
    return {each.target: each.word for each in evaluate(windows)}


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    # the machine is half as fast in the second round: ratios of the rounds' medians would be 7.5 ÷ 1.5
    windows = [window("food/ipex", rate, number) for number, rate in enumerate((10.0, 5.0, 12.0))]
    windows += [window("stock", rate, number) for number, rate in enumerate((2.0, 1.0, 2.0))]
    found = ratio(rates(windows), "food/ipex", "stock")
    assert found is not None
    assert (found.median, found.low, found.high, found.rounds) == (5.0, 5.0, 6.0, 3)


def test_windows_of_other_groups_and_invalid_ones_are_never_divided() -> None:
    windows = [window("food/ipex", 10.0), window("stock", 1.0, group=1), window("stock", 1.0, valid=False)]
    assert ratio(rates(windows), "food/ipex", "stock") is None


@pytest.mark.parametrize(("food", "word"), [(10.0, PASS), (9.9, SHORT)], ids=["just enough", "just short"])
def test_pass_or_short(food: float, word: str) -> None:
    assert verdicts([window("food/ipex", food), window("stock", 1.0)])[
        "food recognizer, best exact fp32: against stock"] == word


def test_what_no_round_has_is_not_measured() -> None:
    assert set(verdicts([]).values()) == {NOT_MEASURED}


def test_every_target_uses_the_fastest_of_its_kind() -> None:
    windows = [window("stock", 1.0), window("intel", 5.0), window("food/ipex", 9.0), window("food/openvino", 12.0),
               window("litserve/openvino", 10.0), window("scorer/openvino", 11.0), window("food/openvino/tensor", 17.0),
               window("in-process/openvino", 15.0), window("food/openvino-int8", 20.0)]
    judged = {each.target: each for each in evaluate(windows)}
    fp32 = [each for target, each in judged.items() if "fp32" in target]
    assert {each.setup for each in fp32} == {"food/openvino", "scorer/openvino", "food/openvino/tensor"}
    assert [(each.word, round(each.found.median, 2)) for each in fp32 if each.found] == [
        (PASS, 12.0), (PASS, 2.4), (PASS, 1.2), (SHORT, 0.92), (PASS, 1.42), (SHORT, 0.8)]
    assert judged["food recognizer, INT8 within tolerance: against stock"].word == PASS
    assert judged["food recognizer, INT8 within tolerance: against LitServe, same engine"].word == NOT_MEASURED


def test_the_faster_of_intels_variants_is_the_rival() -> None:
    windows = [window("intel", 5.0), window("intel/torchscript", 6.0), window("food/ipex", 11.0)]
    judged = {each.target: each for each in evaluate(windows)}["food recognizer, best exact fp32: against intel"]
    assert (judged.against, judged.word) == ("intel/torchscript", SHORT)


def test_runtimes_of_different_groups_are_compared_by_their_ratio_to_a_baseline() -> None:
    # the second group ran while the machine was twice as fast
    windows = [window("intel", 5.0), window("food/ipex", 10.0), window("intel", 10.0, group=1),
               window("food/openvino", 15.0, group=1)]
    assert fastest(rates(windows), ["food/ipex", "food/openvino"], ["intel"]) == "food/ipex"
    assert fastest(rates(windows), ["food/ipex", "food/openvino"], []) == "food/openvino"
