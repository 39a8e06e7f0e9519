"""The synthetic-degradation set is honest: known severities, reproducible, and scenes never leak into each other."""

from __future__ import annotations

import numpy as np
import pytest

from handlers.errors import ArtifactError
from models import datasets
from models.datasets import (
    DEGRADATIONS,
    HELD_OUT,
    PHOTOS,
    Crop,
    degradation_set,
    degrade,
    load_photo,
    photo_path,
    score_of,
    square_crop,
)

SIZE = 64
PAIR = ("coffee", "brick")


def same(left: Crop, right: Crop) -> bool:
    facts = ("photo", "scene", "kind", "severity", "score")
    return (np.array_equal(left.image, right.image)
            and all(getattr(left, fact) == getattr(right, fact) for fact in facts))


@pytest.mark.parametrize("name", PHOTOS)
def test_every_photo_is_there(name: str) -> None:
    image = load_photo(name)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert min(image.shape[:2]) >= 224  # so that no crop of the demo's size is an enlargement


def test_a_photo_that_a_package_no_longer_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHOTOS, "gone", ("skimage", "data/gone.png", "gone"))
    monkeypatch.setitem(PHOTOS, "nowhere", ("no_such_package", "x.png", "nowhere"))
    for name in ("gone", "nowhere"):
        with pytest.raises(ArtifactError, match=r"pip install -e"):
            photo_path(name)


def test_the_set_is_a_pure_function_of_its_arguments() -> None:
    np.random.seed(1)
    first = degradation_set(PAIR, 13, SIZE, 7)
    np.random.seed(2)
    assert all(map(same, first, degradation_set(PAIR, 13, SIZE, 7)))
    other_seed = degradation_set(PAIR, 13, SIZE, 8)
    assert not any(map(same, first, other_seed))


def test_leaving_a_photo_out_or_reordering_changes_no_other_photos_crops() -> None:
    both, swapped = degradation_set(PAIR, 13, SIZE, 7), degradation_set(PAIR[::-1], 13, SIZE, 7)
    for name in PAIR:
        alone = degradation_set((name,), 13, SIZE, 7)
        for crops in (both, swapped):
            of_it = [crop for crop in crops if crop.photo == name]
            assert len(of_it) == len(alone) == 13
            assert all(map(same, of_it, alone))


def test_more_crops_continue_the_fewer() -> None:
    assert all(map(same, degradation_set(("coffee",), 5, SIZE, 7), degradation_set(("coffee",), 9, SIZE, 7)))


def test_crops_are_labelled() -> None:
    crops = degradation_set(PAIR, 48, SIZE, 7)
    assert {crop.kind for crop in crops} == set(DEGRADATIONS)
    for crop in crops:
        assert crop.image.shape == (SIZE, SIZE, 3)
        assert crop.image.dtype == np.uint8
        assert 0.0 <= crop.severity <= 1.0
        assert crop.score == pytest.approx(10.0 - 9.0 * crop.severity)
        assert crop.scene == PHOTOS[crop.photo][2]
    severities = [crop.severity for crop in crops]
    assert severities.count(0.0) == 2 * 4  # every twelfth crop of a photo is untouched
    assert np.histogram(severities, 4, (0, 1))[0].min() >= 10  # and the others spread


def test_the_ends_of_the_scale() -> None:
    assert (score_of(0.0), score_of(1.0)) == (10.0, 1.0)


def test_photos_of_one_scene_are_one_group() -> None:
    left, right = degradation_set(("motorcycle_left", "motorcycle_right"), 1, SIZE, 7)
    assert left.scene == right.scene
    assert left.photo != right.photo
    assert set(HELD_OUT) <= {scene for _, _, scene in PHOTOS.values()}


@pytest.mark.parametrize("kind", DEGRADATIONS)
def test_severity_0_is_untouched(kind: str) -> None:
    image = load_photo("coffee")[:SIZE, :SIZE]
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    assert degrade(image, kind, 0.0, rng) is image
    assert rng.bit_generator.state == state


@pytest.mark.parametrize("kind", DEGRADATIONS)
@pytest.mark.parametrize("photo", ["coffee", "chelsea", "brick", "hubble"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_degradation_gets_worse_with_its_severity(kind: str, photo: str, seed: int) -> None:
    image = load_photo(photo)[100:228, 100:228]
    before, distances = image.copy(), []
    for severity in np.linspace(0.0, 1.0, 6):
        worse = degrade(image, kind, float(severity), np.random.default_rng(seed))  # the same choices at each
        assert worse.shape == image.shape
        assert worse.dtype == np.uint8
        distances.append(float(np.sqrt(np.square(worse.astype(float) - image).mean())))
    assert distances[0] == 0.0
    steps = np.diff(distances)
    # a photo without shadows is all white before the end of the exposure's scale
    assert all(steps > 0) or (kind == "exposure" and all(steps[:3] > 0) and all(steps >= 0)), distances
    assert np.array_equal(image, before)


def test_exposure_goes_both_ways() -> None:
    image = load_photo("coffee")
    means = {degrade(image, "exposure", 0.5, np.random.default_rng(seed)).mean() > image.mean() for seed in range(20)}
    assert means == {True, False}


@pytest.mark.parametrize("shape", [(300, 200), (200, 300), (SIZE, 90), (90, SIZE), (SIZE, SIZE)])
def test_a_crop_is_never_enlarged(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sides = []
    resize = datasets.PILImage.Image.resize
    monkeypatch.setattr(datasets.PILImage.Image, "resize",
                        lambda image, *rest: sides.append(image.size) or resize(image, *rest))
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for seed in range(40):
        assert square_crop(image, SIZE, np.random.default_rng(seed)).shape == (SIZE, SIZE, 3)
    assert all(SIZE <= width == height <= min(shape) for width, height in sides)
    if shape == (SIZE, SIZE):
        assert np.array_equal(square_crop(image, SIZE, np.random.default_rng(0)), image)
