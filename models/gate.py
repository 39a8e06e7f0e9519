"""The gate: a student may be handed over only if it is no worse than its teacher on photos that neither has seen.

Figures come with bootstrap intervals, since held-out sets are small; the verdict is on the figures themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from handlers.errors import ArtifactError

RESAMPLES, SEED = 2000, 7
INTERVAL = (2.5, 97.5)  # percentiles
MANY_GROUPS = 20  # from so many on, whole groups are resampled: crops of one photo err together
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class MaxDrop:
    """What a student may lose.

    Attributes:
        mae: of a scorer, relative: 0.02 lets an error of 1.00 become 1.02.
        spearman: of a scorer, absolute.
        accuracy: of a recognizer, in percentage points.
    """

    mae: float = 0.02
    spearman: float = 0.01
    accuracy: float = 0.5

    @classmethod
    def parse(cls, text: str) -> MaxDrop:
        """"mae=0.05,spearman=0.02" or "accuracy=1"; what is not named keeps its default.

        Raises:
            ArtifactError: an unknown name, or a value that is no number from 0 on.
        """
        values = asdict(cls())
        for part in filter(None, (each.strip() for each in text.split(","))):
            name, _, value = (each.strip() for each in part.partition("="))
            try:
                number = float(value)
            except ValueError:
                number = -1.0
            if name not in values or not 0.0 <= number < float("inf"):
                raise ArtifactError("the largest drop is not understood", where=f"--max-drop {text}", why=repr(part),
                                    remedy="mae=0.02,spearman=0.01 (scorer) or accuracy=0.5 (recognizer), from 0 on")
            values[name] = number
        return cls(**values)


@dataclass(frozen=True)
class Figure:
    """One figure of both, and what the student may lose of it.

    Attributes:
        name: "MAE", "Spearman" or "accuracy, %".
        teacher, student: its values.
        low, high: the interval of the student's loss, by paired bootstrap, in the unit of `drop`.
        drop: what the student loses: relative for MAE, absolute for Spearman, points for accuracy; below 0 it gains.
        allowed: of that.
    """

    name: str
    teacher: float
    student: float
    drop: float
    low: float
    high: float
    allowed: float

    @property
    def passed(self) -> bool:
        """NaN never passes."""
        return self.drop <= self.allowed


@dataclass(frozen=True)
class Verdict:
    """All figures.

    Attributes:
        against: "labels", or "teacher" where there are none: then its answers count as right.
        figures: what is judged.
        beside: the student against the teacher, which is shown and not judged.
        images, groups: how many, and of how many photos or scenes.
    """

    against: str
    figures: tuple[Figure, ...]
    beside: dict[str, float]
    images: int
    groups: int

    @property
    def passed(self) -> bool:
        return all(figure.passed for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "against": self.against, "images": self.images, "groups": self.groups,
                "figures": [{**_rounded(asdict(each)), "passed": each.passed} for each in self.figures],
                "student_against_teacher": _rounded(self.beside)}


def judge_scores(teacher: Doubles, student: Doubles, labels: Doubles | None, groups: NDArray[np.int64],
                 allowed: MaxDrop) -> Verdict:
    """A scorer's verdict.

    Args:
        teacher, student, labels: scores [N]. Without labels the teacher is right, and the student may be off by
            `allowed.mae` of the standard deviation of its scores.
    """
    truth = teacher if labels is None else labels
    spread = float(np.std(teacher)) if labels is None else 0.0

    def mae_drop(rows: NDArray[np.int64]) -> float:
        lost, of = (float(np.abs(each[rows] - truth[rows]).mean()) for each in (student, teacher))
        return (lost - of) / (spread or of or 1e-12)

    def spearman_drop(rows: NDArray[np.int64]) -> float:
        return spearman(teacher[rows], truth[rows]) - spearman(student[rows], truth[rows])

    figures = (
        _figure("MAE", lambda rows, who: float(np.abs(who[rows] - truth[rows]).mean()), teacher, student, mae_drop,
                groups, allowed.mae),
        _figure("Spearman", lambda rows, who: spearman(who[rows], truth[rows]), teacher, student, spearman_drop, groups,
                allowed.spearman))
    beside = {"mae": float(np.abs(student - teacher).mean()), "spearman": spearman(student, teacher)}
    return Verdict("teacher" if labels is None else "labels", figures, beside, len(truth), len(set(groups.tolist())))


def judge_classes(teacher: Doubles, student: Doubles, labels: NDArray[np.int64] | None, groups: NDArray[np.int64],
                  allowed: MaxDrop) -> Verdict:
    """A recognizer's verdict.

    Args:
        teacher, student: logits [N, classes].
        labels: class indices [N]; without them the teacher's first answers are right.
    """
    truth = teacher.argmax(1) if labels is None else labels
    # argmax of NaN is an index like any other
    right = {id(who): np.where(np.isnan(who).any(1), np.nan, who.argmax(1) == truth) for who in (teacher, student)}

    def accuracy(rows: NDArray[np.int64], who: Doubles) -> float:
        return 100.0 * float(right[id(who)][rows].mean())

    figure = _figure("accuracy, %", accuracy, teacher, student,
                     lambda rows: accuracy(rows, teacher) - accuracy(rows, student), groups, allowed.accuracy)
    beside = {"agreement": float((teacher.argmax(1) == student.argmax(1)).mean())}
    return Verdict("teacher" if labels is None else "labels", (figure,), beside, len(truth), len(set(groups.tolist())))


def spearman(one: Doubles, two: Doubles) -> float:
    """Rank correlation; 0 where one of them is constant, NaN where one holds a NaN."""
    if np.isnan(one).any() or np.isnan(two).any():
        return float("nan")
    ranks = [rankdata(each) - (len(one) + 1) / 2 for each in (one, two)]
    lengths = float(np.linalg.norm(ranks[0]) * np.linalg.norm(ranks[1]))
    return float(ranks[0] @ ranks[1]) / lengths if lengths else 0.0


def _figure(name: str, value: Callable[[NDArray[np.int64], Doubles], float], teacher: Doubles, student: Doubles,
            drop: Callable[[NDArray[np.int64]], float], groups: NDArray[np.int64], allowed: float) -> Figure:
    every = np.arange(len(teacher))
    drops = [drop(rows) for rows in _resamples(groups)]
    low, high = (float(each) for each in np.percentile(drops, INTERVAL))
    return Figure(name, value(every, teacher), value(every, student), drop(every), low, high, allowed)


def _resamples(groups: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows drawn with replacement, by whole groups where there are enough of them; the same for every figure."""
    rng = np.random.default_rng(SEED)
    names = np.unique(groups)
    if len(names) < MANY_GROUPS:
        return [rng.integers(0, len(groups), len(groups)) for _ in range(RESAMPLES)]
    members = [np.flatnonzero(groups == name) for name in names]
    return [np.concatenate([members[index] for index in rng.integers(0, len(names), len(names))])
            for _ in range(RESAMPLES)]


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}
