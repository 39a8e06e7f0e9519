"""serving/preflight_archives.py with real archives, whole and broken."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.plan import Plan
from configs.settings import Settings
from serving import preflight_archives
from serving.preflight_probes import IPEX
from serving.preflight_problem import Problem
from tests.unit.configs import made_up

MakePlan = Callable[..., Plan]

INSTALLED = {"python": "3.11.7", "torch": "2.8.0+cpu", IPEX: "2.8.10"}


def archive(folder: Path, name: str = "food", **artifact: Any) -> Path:
    """An archive as the toolkit builds it, around a network of random bytes, which do not shrink."""
    runtime = artifact.get("runtime", "eager")
    path = made_up.archive(folder, name, artifact={
        "runtime": runtime, "batch_size": 1, "max_batch_delay_ms": 5, "versions": {"torch": "2.8.0"},
        "files": made_up.files(runtime), **artifact})
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("model.pt", bytes(range(256)) * 40)
    return path


def check(folder: Path, plan: Plan | None = None, installed: dict[str, str] | None = None,
          models: tuple[str, ...] = ()) -> list[Problem]:
    settings = Settings.model_validate({"models": {name: {} for name in models}})
    return preflight_archives.archives(plan, settings, folder, INSTALLED if installed is None else installed)


def only(found: list[Problem], severity: str = "error") -> Problem:
    [problem] = found
    assert problem.severity == severity and problem.why and problem.remedy, problem
    return problem


def test_a_whole_archive(tmp_path: Path, make_plan: MakePlan) -> None:
    archive(tmp_path)
    assert check(tmp_path) == []
    assert check(tmp_path, make_plan({"food": [(0,)]})) == []


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99, -1])
def test_a_truncated_archive(tmp_path: Path, keep: float) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:int(len(whole) * keep) if 0 < keep < 1 else int(keep)])
    assert str(path) in only(check(tmp_path)).what


def test_a_flipped_bit_is_found_by_its_checksum(tmp_path: Path) -> None:
    path = archive(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(bytes(range(256))) + 5000] ^= 1
    path.write_bytes(data)
    problem = only(check(tmp_path))
    assert "damaged" in problem.what and "model.pt" in problem.why and "tscpu build food" in problem.remedy


@pytest.mark.parametrize("missing", ["MAR-INF/MANIFEST.json", "artifact.json"])
def test_an_archive_without_what_it_needs(tmp_path: Path, missing: str) -> None:
    path = archive(tmp_path)
    with zipfile.ZipFile(path) as source:
        kept = {name: source.read(name) for name in source.namelist() if name != missing}
    with zipfile.ZipFile(path, "w") as target:
        for name, data in kept.items():
            target.writestr(name, data)
    assert missing in only(check(tmp_path)).why


def test_all_broken_and_missing_archives_in_one_go(tmp_path: Path) -> None:
    archive(tmp_path, "good")
    for name in ("bad", "worse"):
        (tmp_path / f"{name}.mar").write_bytes(b"PK")
    found = check(tmp_path, models=("bad", "absent", "good", "worse"))
    assert ["bad.mar" in found[0].what, "'absent'" in found[1].what, "worse.mar" in found[2].what] == [True] * 3
    assert len(found) == 3


def test_archives_that_are_not_asked_for_are_not_looked_at(tmp_path: Path) -> None:
    archive(tmp_path)
    (tmp_path / "bad.mar").write_bytes(b"PK")
    assert check(tmp_path, models=("food",)) == []


@pytest.mark.parametrize(("change", "words"), [
    ({"version": "2.0"}, "version 1.0, planned 2.0"), ({"runtime": "ipex"}, "it has eager"),
    ({"batch_size": 8}, "batch size 1, planned 8")],
    ids=["version", "runtime", "batch size"])
def test_an_archive_that_is_not_the_planned_one(tmp_path: Path, make_plan: MakePlan, change: dict[str, Any],
                                                words: str) -> None:
    archive(tmp_path)
    plan = make_plan({"food": [(0,)]})
    problem = only(check(tmp_path, replace(plan, models=(replace(plan.models[0], **change),))))
    assert words in problem.why


@pytest.mark.parametrize(("runtime", "built", "severity", "words"), [
    ("eager", {"torch": "2.8.1"}, None, ""),
    ("eager", {"torch": "2.7.1"}, "warning", "built with 2.7.1, installed is 2.8.0+cpu"),
    ("eager", {"torch": "2.10.0"}, "error", "built with 2.10.0"),
    ("eager", {"torch": "2.8.0", IPEX: "2.7.0"}, None, ""),
    ("ipex", {"torch": "2.8.0", IPEX: "2.8.0"}, None, ""),
    ("ipex", {"torch": "2.8.0", IPEX: "2.7.0"}, "error", "built with 2.7.0"),
    ("eager", {"torch": "2.8.0", "python": "3.10.2"}, "warning", "3.10.2"),
    ("eager", {}, None, ""),
], ids=["patch release", "older torch", "newer torch", "IPEX unused", "same", "other IPEX", "other Python", "silent"])
def test_an_archive_built_with_other_releases(tmp_path: Path, runtime: str, built: dict[str, str],
                                              severity: str | None, words: str) -> None:
    archive(tmp_path, runtime=runtime, versions=built)
    found = check(tmp_path)
    if severity is None:
        assert found == []
    else:
        assert words in only(found, severity).why


def test_an_ipex_archive_of_another_torch_says_both(tmp_path: Path) -> None:
    archive(tmp_path, runtime="ipex", versions={"torch": "2.7.0", IPEX: "2.7.0"})
    assert [each.severity for each in check(tmp_path)] == ["error", "error"]


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnxruntime-int8", "openvino", "openvino-int8"])
def test_a_runtime_whose_package_is_not_installed(tmp_path: Path, make_plan: MakePlan, runtime: str) -> None:
    archive(tmp_path, runtime=runtime)
    package = runtime.removesuffix("-int8")
    problem = only(check(tmp_path))
    assert runtime in problem.what and package in problem.why and f"pip install {package}" in problem.remedy
    assert check(tmp_path, installed={**INSTALLED, package: "1.2.3"}) == []


def test_nothing_is_compared_with_unknown_versions(tmp_path: Path) -> None:
    archive(tmp_path, versions={"torch": "1.0"})
    assert check(tmp_path, installed={}) == []
    archive(tmp_path, versions=["torch"])
    assert check(tmp_path) == []


def test_unpacked_sizes(tmp_path: Path) -> None:
    path = archive(tmp_path)
    (tmp_path / "bad.mar").write_bytes(b"PK")
    [(size, files)] = preflight_archives.unpacked([path, tmp_path / "bad.mar", tmp_path / "absent.mar"])
    assert files == 3 and size > 10240
