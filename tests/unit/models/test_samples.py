"""What int8 is calibrated on is never what it is judged by."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handlers.errors import ArtifactError
from models import datasets, samples
from models.samples import MILD, OWN_SHARE, Sample, calibration, held_out
from models.spec import ModelSpec
from tests.unit.small_network import photo

PHOTOS = 40


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos by the dozen are enough to see where they go."""
    monkeypatch.setattr(samples, "CALIBRATION", 39)
    monkeypatch.setattr(samples, "HELD_OUT", 12)


def spec(**more: Any) -> ModelSpec:
    return ModelSpec.model_validate({"name": "a", "network": {"file": "x.pt"}, "input": {"size": 32}, **more})


SCORER: dict[str, Any] = {"handler": "image_scorer", "head": {"train": "train.py"}}


def photos_of(found: Sequence[Sample]) -> set[str]:
    return {sample.name.split(",")[0] for sample in found}


def severities(found: Sequence[Sample]) -> list[float]:
    return [float(sample.name.split()[-1]) for sample in found]


def same(left: Sequence[Sample], right: Sequence[Sample]) -> bool:
    return len(left) == len(right) and all(
        (one.name, one.score) == (other.name, other.score) and np.array_equal(one.image, other.image)
        for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("more", [{}, SCORER], ids=["classifier", "scorer"])
def test_no_photo_stands_on_both_sides(tmp_path: Path, more: dict[str, Any]) -> None:
    shown, kept = calibration(spec(**more), tmp_path), held_out(spec(**more), tmp_path)
    assert photos_of(kept) == set(datasets.HELD_OUT)
    assert photos_of(shown) == set(datasets.PHOTOS) - set(datasets.HELD_OUT)
    scenes = [{datasets.PHOTOS[name][2] for name in photos_of(found)} for found in (shown, kept)]
    assert not scenes[0] & scenes[1]  # nor the same scene from another side
    assert (len(shown), len(kept)) == (39, 12)
    assert same(shown, calibration(spec(**more), tmp_path)) and same(kept, held_out(spec(**more), tmp_path))


def test_every_photo_gets_its_turn(tmp_path: Path) -> None:
    names = [sample.name.split(",")[0] for sample in calibration(spec(), tmp_path)]
    assert {names.count(name) for name in set(names)} == {3}


def test_a_classifier_sees_what_somebody_may_send_it(tmp_path: Path) -> None:
    found = [*calibration(spec(), tmp_path), *held_out(spec(), tmp_path)]
    assert max(severities(found)) <= MILD
    assert all(sample.score is None for sample in found)
    assert all(sample.image.shape == (32, 32, 3) and sample.image.dtype == np.uint8 for sample in found)


def test_a_scorer_sees_all_damage_with_its_labels(tmp_path: Path) -> None:
    found = [*calibration(spec(**SCORER), tmp_path), *held_out(spec(**SCORER), tmp_path)]
    assert max(severities(found)) > 2 * MILD
    for sample, severity in zip(found, severities(found), strict=True):
        assert sample.score == pytest.approx(datasets.score_of(severity), abs=0.05)  # the name rounds it


def test_a_scorer_of_another_scale_has_no_labels(tmp_path: Path) -> None:
    """Its head was fitted by somebody else, on something else."""
    found = held_out(spec(handler="image_scorer", head={"file": "head.safetensors"}), tmp_path)
    assert max(severities(found)) > 2 * MILD
    assert all(sample.score is None for sample in found)


def test_without_the_demo_photos_nothing_is_held_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets, "PHOTOS", {name: ("no_such_package", "x.png", name) for name in datasets.PHOTOS})
    assert held_out(spec(), tmp_path) == []
    with pytest.raises(ArtifactError, match="is not there"):
        calibration(spec(), tmp_path)


# a model's own photos

OWN = spec(photos="photos")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for index in range(PHOTOS):
        where = tmp_path / "photos" / ("more" if index % 3 == 0 else "")
        Image.fromarray(photo(index, 40, 48)).save(where / f"{index}.{('png', 'JPG', 'webp')[index % 3]}", quality=95)
    (tmp_path / "photos" / "notes.txt").write_text("not a photo")
    return tmp_path


def files_of(found: Sequence[Sample]) -> set[str]:
    return {sample.name.removesuffix(", a crop") for sample in found}


def test_own_photos_are_split_by_their_content(folder: Path) -> None:
    shown, kept = calibration(OWN, folder), held_out(OWN, folder)
    assert not files_of(shown) & files_of(kept)
    assert len(files_of(shown) | files_of(kept)) == PHOTOS
    assert PHOTOS // OWN_SHARE // 2 <= len(files_of(kept)) <= PHOTOS // OWN_SHARE * 2
    assert same(shown, calibration(OWN, folder)) and same(kept, held_out(OWN, folder))
    assert all(sample.score is None for sample in shown + kept)


def test_their_names_and_others_beside_them_do_not_matter(folder: Path, tmp_path: Path) -> None:
    kept = {(folder / "photos" / name).read_bytes() for name in files_of(held_out(OWN, folder))}
    renamed = tmp_path / "renamed"
    (renamed / "photos").mkdir(parents=True)
    paths = sorted(path for path in (folder / "photos").rglob("*.*") if path.suffix != ".txt")
    for index, path in enumerate(reversed(paths[5:])):
        shutil.copy(path, renamed / "photos" / f"photo {index}{path.suffix}")
    again = {(renamed / "photos" / name).read_bytes() for name in files_of(held_out(OWN, renamed))}
    assert again <= kept


def test_copies_never_stand_on_both_sides(folder: Path) -> None:
    for path in list((folder / "photos").glob("*.*")):
        if path.suffix != ".txt":
            shutil.copy(path, folder / "photos" / "more" / f"copy of {path.name}")
    shown, kept = ({(folder / "photos" / name).read_bytes() for name in files_of(side(OWN, folder))}
                   for side in (calibration, held_out))
    assert shown and kept and not shown & kept


def test_few_photos_are_eked_out_with_crops_of_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "HELD_OUT", 60)
    for side in (calibration, held_out):
        monkeypatch.setattr(samples, "CALIBRATION", 60)
        found = side(OWN, folder)
        whole = [sample for sample in found if not sample.name.endswith(", a crop")]
        crops = found[len(whole):]
        assert len(found) == 60 and crops and all(sample.name.endswith(", a crop") for sample in crops)
        assert files_of(crops) <= files_of(whole)
        assert all(sample.image.shape == (40, 48, 3) for sample in whole)
        assert all(sample.image.shape == (32, 32, 3) for sample in crops)


def test_no_more_than_needed_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "CALIBRATION", 7)
    monkeypatch.setattr(samples, "HELD_OUT", 3)
    assert (len(calibration(OWN, folder)), len(held_out(OWN, folder))) == (7, 3)


def test_one_photo_is_too_few(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    (alone / "photos").mkdir(parents=True)
    shutil.copy(folder / "photos" / "1.JPG", alone / "photos" / "1.jpg")
    found = []
    for side in (calibration, held_out):
        try:
            found.append(files_of(side(OWN, alone)))
        except ArtifactError as error:
            assert error.what == "there are too few photos"
            assert str(alone / "photos") in error.where and error.why.startswith("1 of .jpg")
            assert "a hundred" in error.remedy
    assert found == [{"1.jpg"}]  # it stands on one side, and the other has none


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_photos(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "readme.txt").write_text("soon")
    for side in (calibration, held_out):
        with pytest.raises(ArtifactError, match="there are no photos") as caught:
            side(OWN, tmp_path)
        assert str(tmp_path / "photos") in caught.value.where


def test_a_photo_that_cannot_be_read_is_named(folder: Path) -> None:
    for path in (folder / "photos").rglob("*.JPG"):
        path.write_bytes(path.read_bytes()[:-200])
    named = 0
    for side in (calibration, held_out):
        with pytest.raises(ArtifactError, match="a photo cannot be read") as caught:
            side(OWN, folder)
        named += caught.value.where.endswith(".JPG")
        assert "truncated or damaged" in caught.value.why
    assert named == 2
