"""What a run is held against, and the verdict on each: PASS or SHORT, with the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measure.ratios import Rates, Ratio, fastest, rates, ratio
from measure.setups import FP32, INT8

PASS, SHORT, NOT_MEASURED = "PASS", "SHORT", "NOT MEASURED"
BASELINES = ("intel", "stock")


@dataclass(frozen=True)
class Verdict:
    """One target.

    Attributes:
        setup, against: what was divided by what; `setup` is the fastest of its kind.
        wanted: the smallest median that passes.
        found: None where a round with both is missing.
    """

    target: str
    setup: str
    against: str
    wanted: float
    found: Ratio | None

    @property
    def word(self) -> str:
        if self.found is None:
            return NOT_MEASURED
        return PASS if self.found.median >= self.wanted else SHORT


def evaluate(windows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Every target, on the fastest exact fp32 runtime and the fastest INT8 runtime of the food recognizer."""
    found = rates(windows)
    verdicts = []
    for title, runtimes, stock, intel, peer in (("best exact fp32", FP32, 10.0, 2.0, 1.1),
                                                ("INT8 within tolerance", INT8, 15.0, 3.0, 1.15)):
        best = fastest(found, [f"food/{runtime}" for runtime in runtimes], BASELINES)
        runtime = best.removeprefix("food/") or "…"
        name = f"food recognizer, {title}"

        def row(target: str, setup: str, against: str, wanted: float) -> Verdict:
            return Verdict(target, setup, against, wanted, ratio(found, setup, against))

        verdicts += [
            row(f"{name}: against stock", best, "stock", stock),
            row(f"{name}: against intel", best, strongest_intel(found), intel),
            row(f"{name}: against LitServe, same engine", best, f"litserve/{runtime}", peer),
            row(f"image scorer, {title}: against the food recognizer", f"scorer/{runtime}", f"food/{runtime}", 0.92),
            row(f"tensor input, {title}: against JPEG input", f"food/{runtime}/tensor", f"food/{runtime}", 1.3),
            row(f"server efficiency, {title}: against in-process", best, f"in-process/{runtime}", 0.85),
        ]
    return verdicts


def strongest_intel(found: Rates) -> str:
    """`intel`, or its TorchScript variant where that was measured too and is faster: a target needs its best rival."""
    return fastest(found, ("intel", "intel/torchscript"), ()) or "intel"
