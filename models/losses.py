"""What a student is drawn towards: DIST and KD for classes, distance and correlation for scores.

All of it takes outputs of one batch and gives one number that can be differentiated. Nothing here knows of photos or
of training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

LOSSES = ("dist", "kd", "mse")
_SMALLEST = 1e-8  # norm below which a row counts as constant: it correlates with nothing


@dataclass(frozen=True)
class LossOptions:
    """How a student's outputs are held against the teacher's and the labels.

    Attributes:
        name: one of LOSSES. For scores "dist" is "mse" and a correlation beside it; "kd" needs classes.
        beta: weight of the correlation between the classes of a sample (for scores: over the batch).
        gamma: weight of the correlation between the samples of a class.
        tau: temperature of dist. beta = gamma = 2 and tau = 1 are the paper's choice for ImageNet.
        temperature: of kd.
        label: weight of the labels' own loss; for scores the share of the label, from 0 to 1, the teacher has the rest.
    """

    name: str = "dist"
    beta: float = 2.0
    gamma: float = 2.0
    tau: float = 1.0
    temperature: float = 4.0
    label: float | None = None

    @property
    def label_weight(self) -> float:
        """`label`, or what suits the loss: KD's gradients and the labels' are of one size, DIST's weights assume 1."""
        return 1.0 if self.label is None else self.label

    @property
    def label_share(self) -> float:
        """The same for scores."""
        return 0.5 if self.label is None else self.label


def correlation(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Pearson's correlation of each row: [N, K], [N, K] → [N]. Scaling or shifting a row changes nothing."""
    one, two = one - one.mean(-1, keepdim=True), two - two.mean(-1, keepdim=True)
    lengths = one.norm(dim=-1) * two.norm(dim=-1)
    result: torch.Tensor = (one * two).sum(-1) / lengths.clamp(min=_SMALLEST)
    return result


def dist(student: torch.Tensor, teacher: torch.Tensor, beta: float = 2.0, gamma: float = 2.0,
         tau: float = 1.0) -> torch.Tensor:
    """β·τ²·(1 − mean correlation within each sample) + γ·τ²·(1 − mean correlation within each class).

    Both are of the softmax at temperature τ. A strong teacher's probabilities are not to be matched, only how they
    relate: over the classes of a sample, and over the samples of a class.

    Args:
        student, teacher: logits [N, classes]; N and classes at least 2.

    Source: Huang, You, Wang, Qian, Xu: Knowledge Distillation from A Stronger Teacher, equations 6 to 10
    (arXiv 2205.10536).
    """
    one, two = ((each / tau).softmax(1) for each in (student, teacher))
    between = 1.0 - correlation(one, two).mean()
    within = 1.0 - correlation(one.t(), two.t()).mean()
    total: torch.Tensor = beta * between + gamma * within
    return tau * tau * total


def kd(student: torch.Tensor, teacher: torch.Tensor, temperature: float = 4.0) -> torch.Tensor:
    """T²·KL(teacher ‖ student) of the softmax at temperature T, the mean over samples.

    Source: Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network (arXiv 1503.02531).
    """
    one, two = ((each / temperature).log_softmax(1) for each in (student, teacher))
    return temperature * temperature * functional.kl_div(one, two, reduction="batchmean", log_target=True)


def class_loss(student: torch.Tensor, teacher: torch.Tensor | None, labels: torch.Tensor | None,
               options: LossOptions) -> torch.Tensor:
    """The loss of a recognizer's student.

    Args:
        student: logits [N, classes].
        teacher: logits [N, classes]; None trains on the labels alone.
        labels: class indices [N]; None where there are none.
    """
    total = student.new_zeros(())
    if labels is not None:
        total = total + options.label_weight * functional.cross_entropy(student, labels)
    if teacher is None:
        return total
    if options.name == "dist":
        return total + dist(student, teacher, options.beta, options.gamma, options.tau)
    if options.name == "kd":
        return total + kd(student, teacher, options.temperature)
    return total + functional.mse_loss(student, teacher)


def score_loss(student: torch.Tensor, teacher: torch.Tensor | None, labels: torch.Tensor | None,
               options: LossOptions) -> torch.Tensor:
    """The loss of a scorer's student: its distance from the teacher's score and from the label, by their shares; for
    dist also β·(1 − correlation with both over the batch), since ranking is what scores are for.

    Distances are squared up to half a point and absolute beyond: single crops that nobody can judge do not rule.

    Args:
        student, teacher, labels: scores [N]; teacher or labels may be None, then the other counts for all.
    """
    share = options.label_share if teacher is not None and labels is not None else float(labels is not None)
    total = student.new_zeros(())
    for target, weight in ((labels, share), (teacher, 1.0 - share)):
        if target is None or weight == 0.0:
            continue
        each = functional.smooth_l1_loss(student, target, beta=0.5)
        if options.name == "dist" and len(student) > 1:
            each = each + options.beta * (1.0 - correlation(student, target))
        total = total + weight * each
    return total
