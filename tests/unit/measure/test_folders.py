"""Model folders by name, and students as they lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from measure import folders
from measure.folders import Student, model_folder, students
from scripts import build
from tests.unit.measure.made_up import student


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models" / "scorer").mkdir(parents=True)
    (tmp_path / "models" / "scorer" / "model.yaml").touch()
    monkeypatch.setattr(folders, "MODELS", tmp_path / "models")
    return tmp_path / "models"


def test_students_are_listed_by_name_with_their_teachers(tmp_path: Path) -> None:
    student(tmp_path, "swift", {"teacher": {"name": "image_scorer", "ms": 9.0}})
    student(tmp_path, "brisk")
    student(tmp_path, "odd", ["no", "object"])
    student(tmp_path, ".new-swift-17")  # one that is being put in its place
    (tmp_path / "empty").mkdir()
    assert students(tmp_path) == [Student("brisk", ""), Student("odd", ""), Student("swift", "image_scorer")]
    assert students(tmp_path / "none") == []


def test_a_model_is_found_by_name(models: Path, tmp_path: Path) -> None:
    own = tmp_path / "students"
    student(own, "swift")
    assert model_folder("swift", own) == own / "swift"
    assert model_folder("scorer", own) == models / "scorer"
    student(own, "scorer")
    assert model_folder("scorer", own) == models / "scorer"  # a student takes no model's place
    assert model_folder("neither", own) == models / "neither"


def test_build_finds_students_by_name_and_takes_none_unasked(models: Path, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "students"
    student(own, "swift")
    monkeypatch.setattr(build, "MODELS", models)
    monkeypatch.setattr(build, "model_folder", lambda name: model_folder(name, own))
    assert build.folders(["swift", "scorer", str(own / "swift")]) == [own / "swift", models / "scorer", own / "swift"]
    assert build.folders(None) == build.folders([]) == [models / "scorer"]
