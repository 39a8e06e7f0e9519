"""DIST and KD give what a pencil gives, and DIST sees relations only."""

from __future__ import annotations

import math

import pytest
import torch

from models.losses import LossOptions, class_loss, correlation, dist, kd, score_loss

# probabilities, as logits: the softmax gives them back
STUDENT = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.2, 0.2, 0.6]], dtype=torch.float64).log()
TEACHER = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]], dtype=torch.float64).log()
# deviations from the mean in thirtieths: rows of the student (5,−1,−4), (−4,5,−1), (−4,−4,8), of the teacher (8,−1,−7),
# (−7,8,−1), (−1,−7,8); columns of the student (6,−3,−3), (−1,5,−4), (−5,−2,7), of the teacher (8,−7,−1), (−1,8,−7),
# (−7,−1,8). Each correlation is the product over the root of the squares' product.
ROWS = (69 / math.sqrt(42 * 114), 69 / math.sqrt(42 * 114), 96 / math.sqrt(96 * 114))
COLUMNS = (72 / math.sqrt(54 * 114), 69 / math.sqrt(42 * 114), 93 / math.sqrt(78 * 114))
BETWEEN, WITHIN = 1 - sum(ROWS) / 3, 1 - sum(COLUMNS) / 3


def logits(seed: int, count: int = 6, classes: int = 5) -> torch.Tensor:
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("beta", "gamma", "wanted"), [(1.0, 0.0, BETWEEN), (0.0, 1.0, WITHIN),
                                                       (2.0, 2.0, 2 * BETWEEN + 2 * WITHIN)])
def test_dist_gives_the_hand_computed_value(beta: float, gamma: float, wanted: float) -> None:
    assert dist(STUDENT, TEACHER, beta, gamma).item() == pytest.approx(wanted, abs=1e-12)


def test_dist_has_the_papers_weights_by_default() -> None:
    assert dist(STUDENT, TEACHER).item() == pytest.approx(2 * BETWEEN + 2 * WITHIN, abs=1e-12)


def test_correlations_are_those_of_the_pencil() -> None:
    found = correlation(STUDENT.exp(), TEACHER.exp())
    assert found.tolist() == pytest.approx(ROWS, abs=1e-12)


@pytest.mark.parametrize(("scale", "shift"), [(3.0, 0.0), (1.0, -7.0), (0.01, 100.0)])
def test_a_relation_does_not_change_when_one_side_is_scaled_and_shifted(scale: float, shift: float) -> None:
    one, two = logits(0), logits(1)
    moved = one * scale + shift
    assert torch.allclose(correlation(moved, two), correlation(one, two), atol=1e-9)


def test_dist_does_not_change_when_the_logits_of_a_sample_are_shifted() -> None:
    one, two = logits(0), logits(1)
    shifts = logits(2, 6, 1) * 10
    assert dist(one + shifts, two - shifts).item() == pytest.approx(dist(one, two).item(), abs=1e-12)


def test_scaled_logits_with_a_temperature_scaled_alike_have_the_same_relations() -> None:
    one, two = logits(0), logits(1)
    assert dist(3.0 * one, 3.0 * two, tau=3.0).item() / 9.0 == pytest.approx(dist(one, two).item(), abs=1e-12)


def test_dist_is_nothing_for_a_student_that_answers_as_its_teacher() -> None:
    one = logits(0)
    assert dist(one, one + 5.0).item() == pytest.approx(0.0, abs=1e-9)


def test_dist_has_finite_gradients_where_all_classes_are_equal() -> None:
    flat = torch.zeros(4, 3, requires_grad=True)
    dist(flat, logits(0, 4, 3).float()).backward()  # type: ignore[no-untyped-call]
    assert flat.grad is not None and torch.isfinite(flat.grad).all()


def test_kd_is_the_divergence_from_the_teacher_times_the_squared_temperature() -> None:
    student = torch.tensor([[0.5, 0.5]]).log()
    teacher = torch.tensor([[0.75, 0.25]]).log()
    wanted = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kd(student, teacher, 1.0).item() == pytest.approx(wanted, abs=1e-6)
    assert kd(2 * student, 2 * teacher, 2.0).item() == pytest.approx(4 * wanted, abs=1e-6)


def test_without_a_teacher_only_labels_count() -> None:
    student, labels = logits(0), torch.tensor([0, 1, 2, 3, 4, 0])
    wanted = torch.nn.functional.cross_entropy(student, labels)
    assert class_loss(student, None, labels, LossOptions()).item() == pytest.approx(wanted.item())


def test_without_labels_only_the_teacher_counts() -> None:
    student, teacher = logits(0), logits(1)
    assert class_loss(student, teacher, None, LossOptions()).item() == pytest.approx(dist(student, teacher).item())
    assert class_loss(student, teacher, None, LossOptions("kd")).item() == pytest.approx(kd(student, teacher).item())
    wanted = ((student - teacher) ** 2).mean().item()
    assert class_loss(student, teacher, None, LossOptions("mse")).item() == pytest.approx(wanted)


def test_scores_are_drawn_towards_teacher_and_label_by_their_shares() -> None:
    student, teacher, labels = torch.tensor([5.0, 6.0]), torch.tensor([7.0, 6.0]), torch.tensor([5.0, 9.0])
    # beyond half a point a distance d costs d − 0.25: teacher (1.75 + 0) / 2, labels (0 + 2.75) / 2
    loss = score_loss(student, teacher, labels, LossOptions("mse", label=0.25))
    assert loss.item() == pytest.approx(0.75 * 0.875 + 0.25 * 1.375)


def test_scores_without_labels_follow_the_teacher_alone() -> None:
    student, teacher = torch.tensor([5.0, 6.0]), torch.tensor([7.0, 6.0])
    assert score_loss(student, teacher, None, LossOptions("mse", label=0.9)).item() == pytest.approx(0.875)


def test_dist_for_scores_adds_the_correlation_over_the_batch() -> None:
    student, labels = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0])
    plain = score_loss(student, None, labels, LossOptions("mse")).item()
    assert score_loss(student, None, labels, LossOptions("dist", beta=2.0)).item() == pytest.approx(plain + 4.0)
