"""Ratios between setups: one a round, then their median and spread.

Minutes differ on a shared machine by up to a factor of two; two windows of the same round do not. So setups are
divided round by round, and only then is the median taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

Rates = dict[str, dict[tuple[int, int], float]]  # setup → (group, round) → requests a second


@dataclass(frozen=True)
class Ratio:
    """A median with its spread.

    Attributes:
        low, high: smallest and largest of the rounds.
        rounds: how many rounds had both.
    """

    median: float
    low: float
    high: float
    rounds: int

    def to_dict(self) -> dict[str, float]:
        return {"median": round(self.median, 4), "min": round(self.low, 4), "max": round(self.high, 4),
                "rounds": self.rounds}

    def __str__(self) -> str:
        return f"{figure(self.median)} ({figure(self.low)}–{figure(self.high)})"


def figure(value: float) -> str:
    """A number with as many digits as it is worth."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rates(windows: Iterable[Mapping[str, Any]]) -> Rates:
    """Requests a second of every valid window."""
    found: Rates = {}
    for window in windows:
        if window["valid"]:
            found.setdefault(window["setup"], {})[window["group"], window["round"]] = float(window["rate"])
    return found


def spread(values: Iterable[float]) -> Ratio | None:
    """Median, smallest and largest; None of nothing."""
    found = list(values)
    return Ratio(median(found), min(found), max(found), len(found)) if found else None


def ratio(found: Rates, setup: str, against: str) -> Ratio | None:
    """How many times as fast one setup is as another; None when no round has both."""
    one, two = found.get(setup, {}), found.get(against, {})
    return spread(one[key] / two[key] for key in sorted(one.keys() & two.keys()) if two[key] > 0)


def fastest(found: Rates, setups: Iterable[str], against: Iterable[str]) -> str:
    """The fastest of some setups, empty when none was measured.

    Setups of different groups ran in different minutes, so they are compared by their ratio to the first baseline
    that all of them have beside them, and by their plain rates only when there is none.
    """
    names = [name for name in setups if found.get(name)]
    if not names:
        return ""
    for baseline in against:
        scores = {name: value.median for name in names if (value := ratio(found, name, baseline)) is not None}
        if len(scores) == len(names):
            return max(names, key=scores.__getitem__)
    return max(names, key=lambda name: median(found[name].values()))
