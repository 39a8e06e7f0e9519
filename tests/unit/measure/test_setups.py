"""Setups: which a run takes, and which stand beside each other in memory."""

from __future__ import annotations

import importlib.util

import pytest

from configs.errors import SettingsError
from measure import setups


def names(chosen: list[setups.Setup]) -> list[str]:
    return [setup.name for setup in chosen]


def test_by_default_every_runtime_and_the_baselines_take_part() -> None:
    chosen = names(setups.select([], []))
    assert {"stock", "intel", "noop", "food/ipex", "scorer/openvino-int8", "food/onnxruntime/tensor",
            "in-process/openvino"} <= set(chosen)
    assert not any(name.startswith(("litserve", "stock/", "intel/")) or "eager" in name for name in chosen)
    assert "litserve/openvino-int8" in names(setups.select([], ["litserve"]))


def test_chosen_setups_bring_their_peer() -> None:
    assert names(setups.select(["stock", "food/ip*"], ["litserve"])) == [
        "stock", "food/ipex", "food/ipex/tensor", "litserve/ipex"]


@pytest.mark.parametrize(("patterns", "peers", "message"), [
    (["food/tensorrt"], [], "no setup 'food/tensorrt'"), ([], ["triton"], "no peer 'triton'")])
def test_unknown_names_are_refused(patterns: list[str], peers: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        setups.select(patterns, peers)


def test_groups_hold_the_baselines_and_whole_runtimes() -> None:
    chosen = setups.select(["stock", "intel", "food/*", "scorer/*"], [])
    [everything] = setups.groups(chosen, 1000.0, 2)
    assert everything == chosen
    several = setups.groups(chosen, 10.0, 2)
    assert len(several) > 1
    for group in several:
        assert names(group)[:2] == ["stock", "intel"]
    for setup in chosen:
        if setup.runtime:
            [home] = [group for group in several if setup in group]
            assert all(other in home for other in chosen if other.runtime == setup.runtime)


def test_a_runtime_that_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(SettingsError, match=r"they take about 6\.3 GiB, and 3\.0 GiB may be taken"):
        setups.groups(setups.select(["stock", "intel", "food/openvino"], []), 3.0, 2)


def test_a_shared_server_counts_once() -> None:
    one, both = (setups.needed_gib(setups.select(patterns, [])) for patterns in
                 (["food/openvino"], ["food/openvino", "food/openvino/tensor"]))
    assert one == both


def test_what_is_missing_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    catalogue = setups.catalogue()
    assert setups.missing_packages(catalogue["stock"]).startswith("captum, torchvision, timm not installed")
    assert "'.[openvino]'" in setups.missing_packages(catalogue["food/openvino-int8"])
    assert "'.[litserve]'" in setups.missing_packages(catalogue["litserve/eager"])
    assert not setups.missing_packages(catalogue["noop"])
