"""What students learn from is worked out once, survives a kill, and is what serving shows the network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from handlers.errors import ArtifactError
from handlers.transforms import InputSpec, Preprocess
from models import lessons
from models.lessons import DegradedCrops, Item, PhotoFiles, canvas_of, prepare, student_input
from models.photos import read_photos
from tests.unit.small_network import photo

HALF = (0.5, 0.5, 0.5)
TEACHER = InputSpec(24, 24, "bicubic", HALF, HALF, True, (255, 255, 255), 10**8)


class Made:
    """Photos made up on the spot, which counts how many were asked for."""

    key, labelled = "made", True

    def __init__(self, count: int, label: type = float) -> None:
        self.count, self.label, self.asked = count, label, 0

    def __len__(self) -> int:
        return self.count

    def items(self, start: int = 0) -> Iterator[Item]:
        for index in range(start, self.count):
            self.asked += 1
            yield Item(photo(index, 40, 60), self.label(index), index // 2, f"photo {index}")


class Answers:
    """The mean of the pixels, which counts how often it is asked."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.asked, self.dies_at = 0, dies_at

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.asked == self.dies_at:
            raise KeyboardInterrupt
        self.asked += 1
        return pixels.float().mean((1, 2, 3))


def quiet(what: str, done: int, total: int) -> None:
    pass


def prepared(source: lessons.Source, answers: Answers, cache: Path, key: str = "teacher",
             canvas: InputSpec | None = TEACHER) -> lessons.Lessons:
    return prepare(source, answers, TEACHER, key, canvas, cache, quiet, "answers")


def test_a_crop_keeps_the_teachers_pixels_and_a_resize_shows_all_of_them() -> None:
    wide = replace(TEACHER, resize=32)
    crop = student_input(wide, 16, "crop", HALF, HALF)
    assert (crop.size, crop.resize) == (16, 32)
    resize = student_input(wide, 12, "resize", HALF, HALF)
    assert (resize.size, resize.resize) == (12, 16)


def test_a_crop_larger_than_the_teachers_input_is_refused() -> None:
    with pytest.raises(ArtifactError, match="--size 32"):
        student_input(TEACHER, 32, "crop", HALF, HALF)


@pytest.mark.parametrize("fit", ["crop", "resize"])
def test_the_middle_window_of_a_canvas_is_what_serving_shows(fit: str) -> None:
    teacher = replace(TEACHER, resize=30)
    seen = student_input(teacher, 14, fit, HALF, HALF)
    image = photo(0, 41, 63)
    canvas = Preprocess(canvas_of(teacher, seen, fit)).pixels(image)
    edge = (canvas.shape[-1] - 14) // 2
    assert torch.equal(canvas[..., edge:edge + 14, edge:edge + 14], Preprocess(seen).pixels(image))


def test_canvases_are_what_the_teacher_saw(tmp_path: Path) -> None:
    found = prepared(Made(5), Answers(), tmp_path)
    assert found.canvases.shape == (5, 24, 24, 3)
    wanted = Preprocess(TEACHER).pixels(photo(3, 40, 60))
    assert np.array_equal(found.canvases[3], wanted[0].permute(1, 2, 0).numpy())
    assert found.teacher is not None and found.teacher[3].item() == pytest.approx(wanted.float().mean().item())
    assert found.labels is not None and found.labels.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found.groups.tolist() == [0, 0, 1, 1, 2]


def test_class_labels_are_integers(tmp_path: Path) -> None:
    labels = prepared(Made(4, int), Answers(), tmp_path).labels
    assert labels is not None and labels.dtype == torch.int64


def test_a_teacher_is_asked_once(tmp_path: Path) -> None:
    prepared(Made(5), Answers(), tmp_path)
    again = Answers(dies_at=0)
    assert len(prepared(Made(5), again, tmp_path)) == 5


def test_another_teacher_is_asked_again(tmp_path: Path) -> None:
    prepared(Made(5), Answers(), tmp_path)
    other = Answers()
    prepared(Made(5), other, tmp_path, key="other")
    assert other.asked == 5


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "_SAVED_EVERY", 4)
    with pytest.raises(KeyboardInterrupt):
        prepared(Made(10), Answers(dies_at=7), tmp_path)
    source, second = Made(10), Answers()
    found = prepared(source, second, tmp_path)
    whole = prepared(Made(10), Answers(), tmp_path / "other")
    assert (source.asked, second.asked) == (6, 6)
    assert np.array_equal(found.canvases, whole.canvases)
    assert torch.equal(found.teacher, whole.teacher) and torch.equal(found.labels, whole.labels)  # type: ignore[arg-type]


def test_a_kill_before_anything_was_saved_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        prepared(Made(5), Answers(dies_at=2), tmp_path)
    assert len(prepared(Made(5), Answers(), tmp_path)) == 5


def test_without_canvases_only_answers_are_kept(tmp_path: Path) -> None:
    found = prepared(Made(5), Answers(), tmp_path, canvas=None)
    assert found.canvases.size == 0 and found.teacher is not None and len(found.teacher) == 5


@pytest.mark.parametrize("start", [0, 1, 11, 12, 13])
def test_degraded_crops_can_be_taken_up_anywhere(start: int) -> None:
    pytest.importorskip("skimage")
    source = DegradedCrops(("coffee", "chelsea"), 12, 32, 3)
    whole = list(source.items())
    part = list(source.items(start))
    assert [item.name for item in part] == [item.name for item in whole[start:]]
    assert np.array_equal(part[0].image, whole[start].image) and len(whole) == len(source) == 24


def test_photo_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    from PIL import Image

    for index in range(64):
        Image.fromarray(photo(index)).save(tmp_path / f"{index}.png")
    photos = read_photos(tmp_path, ())
    source = PhotoFiles([each for each in photos if not each.held_out], TEACHER)
    assert not source.labelled
    source.photos[0].path.write_bytes(b"no photo")
    with pytest.raises(ArtifactError, match=source.photos[0].name):
        next(source.items())


def test_a_teacher_that_answers_no_number_is_found_out_at_once(tmp_path: Path) -> None:
    def answer(pixels: torch.Tensor) -> torch.Tensor:
        return torch.full((1,), float("nan"))

    with pytest.raises(ArtifactError, match="photo 0"):
        prepare(Made(5), answer, TEACHER, "teacher", TEACHER, tmp_path, quiet, "answers")
