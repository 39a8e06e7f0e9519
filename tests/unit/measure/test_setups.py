"""Setups: which a run takes, and which stand beside each other in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from configs.errors import SettingsError
from measure import setups
from tests.unit.measure.made_up import student


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


def test_students_stand_beside_the_demo_models_on_every_runtime(tmp_path: Path) -> None:
    student(tmp_path, "swift", {"teacher": {"name": "image_scorer"}})
    student(tmp_path, "brisk")
    known = setups.catalogue(tmp_path)
    assert [name for name in known if name.startswith("swift/")] == [
        f"swift/{runtime}" for runtime in ("eager", *setups.RUNTIMES)]
    assert known["swift/ipex"] == setups.Setup(
        "swift/ipex", "ours", "swift", "ipex", "jpeg", "swift/ipex", "tscpu serve, the student swift on ipex",
        "image_scorer")
    assert known["brisk/ipex"].teacher == "" and known["scorer/ipex"].teacher is None
    # next to the models that they are compared with, so that little time lies between
    order = list(known)
    assert order[order.index("scorer/ipex"):][1:3] == ["brisk/ipex", "swift/ipex"]
    assert set(known) - set(setups.catalogue(tmp_path / "none")) == {
        f"{name}/{runtime}" for name in ("brisk", "swift") for runtime in ("eager", *setups.RUNTIMES)}


def test_a_run_takes_students_as_it_takes_the_rest(tmp_path: Path) -> None:
    student(tmp_path, "swift")
    chosen = names(setups.select([], [], tmp_path))
    assert [name for name in chosen if name.startswith("swift/")] == [
        f"swift/{runtime}" for runtime in setups.RUNTIMES]
    assert names(setups.select(["swift/open*"], ["litserve"], tmp_path)) == ["swift/openvino", "swift/openvino-int8"]
    [group] = setups.groups(setups.select(["*/ipex"], [], tmp_path), 1000.0, 2)
    assert {"food/ipex", "scorer/ipex", "swift/ipex"} <= set(names(group))


@pytest.mark.parametrize("name", ["food", "stock", "in-process", "image_scorer"])
def test_a_student_with_anothers_name_is_refused(tmp_path: Path, name: str) -> None:
    student(tmp_path, name)
    with pytest.raises(SettingsError, match=f"cannot be called {name}"):
        setups.catalogue(tmp_path)
