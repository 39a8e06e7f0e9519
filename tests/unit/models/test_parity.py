"""A built network is judged by numbers that can be worked out by hand, and a NaN is never good enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from handlers.errors import ArtifactError
from handlers.runtimes import Network
from handlers.transforms import InputSpec, Preprocess
from models.parity import RANDOM_TENSORS, Reference, beyond, compare, reference
from models.samples import Sample
from models.spec import Tolerance

SIZE = 8
PREPROCESS = Preprocess(InputSpec(SIZE, SIZE, "bicubic", (0.0,) * 3, (1.0,) * 3, True, (255,) * 3, 10**6))
NAMES = ("toast", "soup", "cake", "stew")
NAN, INFINITE = float("nan"), float("inf")
Rows = Sequence[Any]


def expected(rows: Rows, scores: Sequence[float | None] | None = None) -> Reference:
    """What the eager network answers: `rows` to the photos, of which each is known by its one level of grey; zeros and
    a one to a random batch of two.
    """
    outputs = torch.tensor(rows, dtype=torch.float32)
    images = [np.full((SIZE, SIZE, 3), index, np.uint8) for index in range(len(rows))]
    samples = [Sample(image, NAMES[index], scores[index] if scores else None) for index, image in enumerate(images)]
    batch = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    wanted = torch.zeros(2, *outputs.shape[1:])
    wanted.view(-1)[0] = 1.0
    return Reference(((batch, wanted),), samples, tuple(PREPROCESS.pixels(image) for image in images),
                     outputs)


def built(rows: Rows, random: float = 0.0, pixels: bool = False) -> Network:
    """A network that answers `rows` to the photos, and the random batch with an error of `random`."""
    outputs = torch.tensor(rows, dtype=torch.float32)

    def by(levels: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(batch: torch.Tensor) -> torch.Tensor:
            if len(batch) == 2:
                found = torch.zeros(2, *outputs.shape[1:])
                found.view(-1)[0] = 1.0
                found.view(-1)[-1] = random
                return found
            return outputs[[round(float(image.float().mean()) * levels) for image in batch]]
        return run

    return Network(by(255.0), by(1.0) if pixels else None)


def record(wanted: Rows, found: Rows, groups: dict[str, tuple[int, ...]] | None = None,
           scores: Sequence[float | None] | None = None, **more: Any) -> dict[str, Any]:
    return compare(built(found, **more), expected(wanted, scores), PREPROCESS, groups or {})


def logs(*rows: Sequence[float]) -> list[list[float]]:
    """Logits whose softmax is these rows."""
    return [[math.log(each) for each in row] for row in rows]


REFERENCE = logs((0.9, 0.05, 0.05), (0.5, 0.4, 0.1), (0.2, 0.2, 0.6), (0.34, 0.33, 0.33))
FOUND = logs((0.8, 0.1, 0.1), (0.4, 0.5, 0.1), (0.2, 0.2, 0.6), (0.34, 0.33, 0.33))


def test_classes_by_hand() -> None:
    found = record(REFERENCE, FOUND, {"food": (0, 2), "drink": (1,)})
    assert found["classes"] == {
        "top1": 0.75, "worst": "soup",  # one of four changed, and the reference was not sure of it
        "confident_images": 2, "top1_confident": 1.0, "worst_confident": "",
        "food_probability": {"mean_error": pytest.approx(0.0375, abs=1e-4), "largest_error": pytest.approx(0.1),
                             "worst": "soup"},
        "drink_probability": {"mean_error": pytest.approx(0.0375, abs=1e-4), "largest_error": pytest.approx(0.1),
                              "worst": "soup"}}
    assert found["photos"]["images"] == 4 and found["photos"]["worst"] == "toast"
    assert found["photos"]["largest_difference"] == pytest.approx(math.log(2), rel=1e-3)  # 0.05 became 0.1
    assert found["photos"]["relative"] == pytest.approx(math.log(2) / math.log(20), rel=1e-3)
    assert "scores" not in found


def test_a_confident_answer_that_changes_is_named() -> None:
    found = record(REFERENCE, [*FOUND[:2], *logs((0.6, 0.2, 0.2)), FOUND[3]])["classes"]
    assert (found["top1"], found["top1_confident"]) == (0.5, 0.5)
    assert (found["worst"], found["worst_confident"]) == ("cake", "cake")  # of the two that changed, the surer one
    faults = beyond(record(REFERENCE, [*FOUND[:2], *logs((0.6, 0.2, 0.2)), FOUND[3]]), Tolerance(), quantized=True)
    assert faults == ["50.0 % of confident answers are the same, not for cake; 99 % is asked for",
                      "50.0 % of answers are the same, not for cake; 93 % is asked for"]


def test_nobody_was_confident() -> None:
    found = record([REFERENCE[3]], [REFERENCE[3]])["classes"]
    assert (found["confident_images"], found["top1_confident"]) == (0, 1.0)


@pytest.mark.parametrize("shape", [(4,), (4, 1)], ids=["[N]", "[N, 1]"])
def test_scores_by_hand(shape: tuple[int, ...]) -> None:
    wanted, found = (torch.tensor(rows).reshape(shape).tolist()
                     for rows in ((1.0, 2.0, 3.0, 4.0), (2.0, 1.0, 3.0, 4.6)))
    scores = record(wanted, found)["scores"]
    assert scores == {"mae": 0.65, "largest": 1.0, "worst": "toast", "spearman": 0.8}  # two ranks swapped: 1 - 6·2/60
    assert "classes" not in record(wanted, found)


def test_scores_against_labels_by_hand() -> None:
    found = record([1.0, 2.0, 3.0, 4.0], [1.5, 2.0, 3.0, 4.0], scores=[1.0, 2.0, 4.0, 3.0])["scores"]
    assert found["labels"] == {"mae": 0.625, "reference_mae": 0.5, "spearman": 0.8, "reference_spearman": 0.8}
    assert "labels" not in record([1.0, 2.0], [1.0, 2.0], scores=[1.0, None])["scores"]


def test_how_far_scores_are_beyond_is_told_with_the_photo() -> None:
    faults = beyond(record([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 4.6], scores=[1.0, 2.0, 3.0, 4.0]), Tolerance(),
                    quantized=True)
    assert faults == [
        "scores move by 0.650 on average, by 1.00 for toast; 0.2 is allowed",
        "Spearman to the reference is 0.8000; 0.995 is asked for",
        "against the labels MAE goes from 0.000 to 0.650, Spearman from 1.000 to 0.800; 2 % is allowed"]


def test_within_tolerance_nothing_is_said() -> None:
    for quantized in (False, True):
        assert beyond(record(REFERENCE, REFERENCE, {"food": (0,)}), Tolerance(), quantized) == []
        assert beyond(record([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], scores=[1.0, 3.0, 2.0, 4.0]), Tolerance(),
                      quantized) == []


def test_fp32_is_judged_by_its_largest_difference() -> None:
    photos = record(REFERENCE, FOUND)
    assert beyond(photos, Tolerance(), quantized=False) == [
        "outputs differ by 2.3e-01 of the largest one, for toast; 1e-04 is allowed"]
    tensors = record(REFERENCE, REFERENCE, random=0.5)
    assert tensors["random_tensors"] == {"images": 2, "largest_difference": 0.5, "relative": 0.5}
    assert beyond(tensors, Tolerance(), quantized=False) == [
        "outputs differ by 5.0e-01 of the largest one; 1e-04 is allowed"]
    assert beyond(tensors, Tolerance(), quantized=True) == []  # noise is no photo, and int8 was not made for it


def test_p25_the_worst_of_several_random_batches_counts() -> None:
    wanted = expected(REFERENCE)
    exact, (batch, zeros) = built(REFERENCE), wanted.batches[0]
    for place in range(3):
        batches = [(batch, exact(batch))] * 3
        batches[place] = (batch, zeros + 0.25)
        found = compare(exact, Reference(tuple(batches), wanted.samples, wanted.pixels, wanted.outputs), PREPROCESS, {})
        assert found["random_tensors"]["largest_difference"] == 0.25


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE], ids=str)
@pytest.mark.parametrize("quantized", [False, True], ids=["fp32", "int8"])
@pytest.mark.parametrize("place", range(4))
def test_p37_nan_and_infinity_are_never_within(value: float, quantized: bool, place: int) -> None:
    lenient = Tolerance(fp32=1e30, confident=1.0, top1=1.0, score_mae=1e30, spearman=-1.0, label_loss=1e30,
                        other_int8=1e30)
    scores = [1.0, 2.0, 3.0, 4.0]
    scores[place] = value
    assert beyond(record([1.0, 2.0, 3.0, 4.0], scores), lenient, quantized)
    for column in range(3):
        classes = [list(row) for row in REFERENCE]
        classes[place][column] = value
        if quantized and math.isinf(value) and record(REFERENCE, classes)["classes"]["top1"] == 1.0:
            continue  # a class that is certain, or out of the question, and the right one still first
        assert beyond(record(REFERENCE, classes), lenient, quantized)
    maps = np.ones((4, 2, 2))
    spoilt = maps.copy()
    spoilt[place, 1, 0] = value
    assert beyond(record(maps.tolist(), spoilt.tolist()), lenient, quantized)


@pytest.mark.parametrize("place", range(3))
def test_p37_one_nan_among_random_batches_is_not_lost(place: int) -> None:
    wanted = expected(REFERENCE)
    exact, batch = built(REFERENCE), wanted.batches[0][0]
    batches = [(batch, exact(batch))] * 3
    batches[place] = (batch, torch.full((2, 3), NAN))
    found = compare(exact, Reference(tuple(batches), wanted.samples, wanted.pixels, wanted.outputs), PREPROCESS, {})
    assert beyond(found, Tolerance(fp32=1e30), quantized=False) == [
        "outputs differ by nan of the largest one; 1e+30 is allowed"]


def test_int8_without_photos_is_refused() -> None:
    nothing = compare(built(REFERENCE), Reference(expected(REFERENCE).batches, (), (), None), PREPROCESS, {})
    assert "photos" not in nothing
    assert beyond(nothing, Tolerance(), quantized=True) == ["there are no photos to judge it on"]


def test_fp32_without_photos_is_judged_by_random_tensors() -> None:
    wanted = expected(REFERENCE)
    none = Reference(wanted.batches, (), (), None)
    assert beyond(compare(built(REFERENCE), none, PREPROCESS, {}), Tolerance(), quantized=False) == []
    assert beyond(compare(built(REFERENCE, random=0.5), none, PREPROCESS, {}), Tolerance(), quantized=False) != []


def test_outputs_of_other_shapes_are_judged_by_their_largest_difference() -> None:
    maps = np.ones((2, 2, 2))
    moved = maps.copy()
    moved[1, 0, 1] += 0.125
    found = record(maps.tolist(), moved.tolist())
    assert "classes" not in found and "scores" not in found
    assert beyond(found, Tolerance(), quantized=True) == [
        "outputs differ by 0.12 of the largest one, for soup; 0.05 is allowed"]
    assert beyond(found, Tolerance(other_int8=0.2), quantized=True) == []


def test_p25_another_shape_of_answers_is_refused() -> None:
    with pytest.raises(ArtifactError, match="another shape") as caught:
        compare(built([[0.0, 1.0]]), expected(REFERENCE), PREPROCESS, {})
    assert caught.value.where == "batch of 2"
    assert caught.value.why == "[2, 2], and [2, 3] is expected"


def test_photos_reach_a_runtime_as_they_do_when_it_serves() -> None:
    """Where it normalises pixels by itself, that is judged too."""
    spoilt = Network(built(REFERENCE).floats, built(FOUND, pixels=True))
    found = compare(spoilt, expected(REFERENCE), PREPROCESS, {})
    assert found["classes"]["top1"] == 0.75
    assert found["random_tensors"]["largest_difference"] == 0.0


class Means(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


@pytest.mark.parametrize(("largest", "counts"), [(1, {1, 2}), (2, {1, 2}), (3, {1, 2, 3}), (64, {1, 2, 64})])
def test_p25_the_reference_answers_batches_of_every_kind(largest: int, counts: set[int]) -> None:
    sample = Sample(np.full((20, 30, 3), 51, np.uint8), "grey")
    first, again = (reference(Means(), PREPROCESS, [sample], largest) for _ in range(2))
    assert {len(batch) for batch, _ in first.batches} == counts
    assert sum(len(batch) for batch, _ in first.batches) >= RANDOM_TENSORS
    assert all(torch.equal(left, right) for left, right in zip(sum(first.batches, ()), sum(again.batches, ()),
                                                              strict=True))
    assert all(torch.equal(wanted, batch.mean((2, 3))) for batch, wanted in first.batches)
    assert first.outputs is not None
    assert torch.allclose(first.outputs, torch.full((1, 3), 0.2))
    assert [tuple(each.shape) for each in first.pixels] == [(1, 3, SIZE, SIZE)]
    assert reference(Means(), PREPROCESS, [], largest).outputs is None
