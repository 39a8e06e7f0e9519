"""The gate: what passes, what does not, and what its intervals are of."""

from __future__ import annotations

import numpy as np
import pytest

from handlers.errors import ArtifactError
from models.gate import MaxDrop, judge_classes, judge_scores, spearman

RNG = np.random.default_rng(0)
LABELS = RNG.uniform(1, 10, 200)
TEACHER = LABELS + RNG.normal(0, 1, 200)
ONE_EACH = np.arange(200)


def worse(factor: float) -> np.ndarray:
    """The teacher with all errors so many times as large."""
    return LABELS + factor * (TEACHER - LABELS)


def test_a_student_like_its_teacher_passes_and_loses_nothing() -> None:
    verdict = judge_scores(TEACHER, TEACHER.copy(), LABELS, ONE_EACH, MaxDrop())
    assert verdict.passed
    assert [figure.drop for figure in verdict.figures] == [0.0, 0.0]
    assert verdict.beside == {"mae": 0.0, "spearman": pytest.approx(1.0)}


@pytest.mark.parametrize(("factor", "passes"), [(1.019, True), (1.021, False), (0.5, True)])
def test_mae_may_grow_by_two_percent(factor: float, passes: bool) -> None:
    verdict = judge_scores(TEACHER, worse(factor), LABELS, ONE_EACH, MaxDrop(spearman=1.0))
    assert verdict.figures[0].drop == pytest.approx(factor - 1, abs=1e-9)
    assert verdict.passed is passes


def test_ranking_alone_can_fail() -> None:
    student = LABELS.mean() + np.sign(LABELS - np.median(LABELS))
    verdict = judge_scores(TEACHER, student, LABELS, ONE_EACH, MaxDrop(mae=10.0))
    assert not verdict.passed
    assert verdict.figures[1].drop > 0.01


def test_max_drop_changes_what_passes() -> None:
    allowed = MaxDrop.parse("mae=0.1, spearman=0.05")
    assert judge_scores(TEACHER, worse(1.09), LABELS, ONE_EACH, allowed).passed
    assert allowed == MaxDrop(0.1, 0.05, 0.5)


@pytest.mark.parametrize("text", ["mae", "mae=x", "loss=1", "mae=-1", "mae=nan", "mae=inf", "0.05"])
def test_a_max_drop_that_is_not_understood_names_its_part(text: str) -> None:
    with pytest.raises(ArtifactError) as error:
        MaxDrop.parse(text)
    assert text in str(error.value) and "accuracy=0.5" in str(error.value)


def test_without_labels_the_teacher_is_right_and_its_spread_is_the_measure() -> None:
    spread = TEACHER.std()
    close = TEACHER + np.where(np.arange(200) % 2, 0.019, -0.019) * spread
    far = TEACHER + np.where(np.arange(200) % 2, 0.021, -0.021) * spread
    assert judge_scores(TEACHER, close, None, ONE_EACH, MaxDrop()).passed
    verdict = judge_scores(TEACHER, far, None, ONE_EACH, MaxDrop())
    assert not verdict.passed and verdict.against == "teacher"


def test_a_nan_never_passes() -> None:
    student = TEACHER.copy()
    student[3] = np.nan
    verdict = judge_scores(TEACHER, student, LABELS, ONE_EACH, MaxDrop(1e9, 1e9))
    assert [figure.passed for figure in verdict.figures] == [False, False]


def test_the_interval_holds_the_loss_and_shrinks_with_more_photos() -> None:
    student = LABELS + np.random.default_rng(1).normal(0, 1.1, 200)
    few = judge_scores(TEACHER[:50], student[:50], LABELS[:50], ONE_EACH[:50], MaxDrop()).figures[0]
    many = judge_scores(TEACHER, student, LABELS, ONE_EACH, MaxDrop()).figures[0]
    assert few.low < few.drop < few.high and many.low < many.drop < many.high
    assert many.high - many.low < few.high - few.low


def test_intervals_are_the_same_each_time() -> None:
    student = worse(1.1)
    first, second = (judge_scores(TEACHER, student, LABELS, ONE_EACH, MaxDrop()) for _ in range(2))
    assert first == second


def test_crops_of_one_photo_are_resampled_together_where_there_are_many_photos() -> None:
    # photos differ and the crops of one photo do not, so that many crops know no more than one
    photos = np.repeat(np.arange(40), 5)
    labels = np.repeat(np.random.default_rng(2).uniform(1, 10, 40), 5)
    teacher = labels + np.repeat(np.random.default_rng(3).normal(0, 1, 40), 5)
    student = labels + np.repeat(np.random.default_rng(4).normal(0, 1, 40), 5)
    by_photo = judge_scores(teacher, student, labels, photos, MaxDrop()).figures[0]
    by_crop = judge_scores(teacher, student, labels, ONE_EACH, MaxDrop()).figures[0]
    assert by_photo.high - by_photo.low > 1.5 * (by_crop.high - by_crop.low)


def logits(answers: list[int]) -> np.ndarray:
    return np.eye(3)[answers] * 4.0


def test_accuracy_is_in_points() -> None:
    labels = np.array([0, 1, 2, 0] * 50)
    teacher = logits(labels.tolist())
    student = teacher.copy()
    student[:1] = logits([1])  # one of 200: half a point
    verdict = judge_classes(teacher, student, labels, ONE_EACH, MaxDrop())
    assert verdict.figures[0].drop == pytest.approx(0.5) and verdict.passed
    student[4:5] = logits([1])
    assert not judge_classes(teacher, student, labels, ONE_EACH, MaxDrop()).passed
    assert judge_classes(teacher, student, labels, ONE_EACH, MaxDrop.parse("accuracy=1")).passed


def test_a_student_may_be_right_where_its_teacher_is_wrong() -> None:
    labels = np.array([0, 1, 2, 0] * 50)
    teacher = logits([1, *labels[1:].tolist()])
    verdict = judge_classes(teacher, logits(labels.tolist()), labels, ONE_EACH, MaxDrop())
    assert verdict.figures[0].drop == pytest.approx(-0.5)
    assert verdict.beside["agreement"] == pytest.approx(199 / 200)


def test_classes_without_labels_are_held_against_the_teacher() -> None:
    teacher = logits([0, 1, 2, 0] * 50)
    verdict = judge_classes(teacher, teacher.copy(), None, ONE_EACH, MaxDrop())
    assert (verdict.against, verdict.figures[0].teacher, verdict.figures[0].student) == ("teacher", 100.0, 100.0)


def test_classes_that_are_nan_never_pass() -> None:
    teacher = logits([0, 1, 2, 0] * 50)
    student = np.full_like(teacher, np.nan)
    assert not judge_classes(teacher, student, None, ONE_EACH, MaxDrop(accuracy=100.0)).passed


@pytest.mark.parametrize(("one", "two", "wanted"), [
    ([1, 2, 3], [10, 20, 30], 1.0), ([1, 2, 3], [3, 2, 1], -1.0), ([1, 1, 1], [1, 2, 3], 0.0),
    # with a tie: ranks (1.5, 1.5, 3) and (1, 2, 3)
    ([1, 1, 2], [1, 2, 3], 0.8660254)])
def test_spearman(one: list[float], two: list[float], wanted: float) -> None:
    assert spearman(np.array(one, float), np.array(two, float)) == pytest.approx(wanted)


def test_a_verdict_becomes_a_record() -> None:
    record = judge_scores(TEACHER, worse(1.5), LABELS, ONE_EACH, MaxDrop()).to_dict()
    assert record["passed"] is False and record["images"] == 200
    assert not record["figures"][0]["passed"]
