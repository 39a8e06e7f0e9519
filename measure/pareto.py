"""Quality against milliseconds: which of some models are worth a look, and a picture of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import SettingsError

INCHES, DOTS = (9.0, 5.5), 100  # 900 × 550 pixels
# what does not depend on when, and by which release, a file was written
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
_KINDS = ((None, "teacher", "s", "black"), (True, "within the gate", "o", "tab:green"),
          (False, "beyond the gate", "X", "tab:red"))
# where a name may stand beside its marker: points to the right and up, and which end of it is there
_PLACES = ((8, 7, "left"), (8, -13, "left"), (-8, 7, "right"), (-8, -13, "right"), (0, 13, "center"),
           (0, -20, "center"), (8, 20, "left"), (8, -26, "left"))


@dataclass(frozen=True)
class Point:
    """One model.

    Attributes:
        ms: milliseconds of one image on one pinned thread.
        quality: in whatever unit; all points of a picture have the same.
        passed: whether it is within the gate; None for the teacher, which is what the gate is made of.
    """

    name: str
    ms: float
    quality: float
    passed: bool | None


def front(points: Sequence[Point], higher_is_better: bool) -> list[bool]:
    """For each point whether no other is at least as good in both, and better in one. Equal points are both on it."""
    sign = -1.0 if higher_is_better else 1.0
    costs = [(point.ms, sign * point.quality) for point in points]
    return [not any(other[0] <= own[0] and other[1] <= own[1] and other != own for other in costs) for own in costs]


def picture(points: Sequence[Point], path: Path, quality_name: str, higher_is_better: bool,
            limit: float | None) -> None:
    """Writes the points and their front, as .png or .svg; the same points give the same file.

    Args:
        path: its folder is made if it is not there; a file there is replaced as a whole.
        quality_name: with its unit.
        limit: the worst quality that the gate accepts; None draws none.

    Raises:
        SettingsError: another suffix, or matplotlib is not installed.
    """
    if path.suffix not in _METADATA:
        raise SettingsError("a picture is a .png or a .svg", where=str(path))
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("the picture cannot be drawn", where=str(path), why=str(error),
                            remedy="pip install -e '.[distill]'") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        # Agg for this figure alone, whatever the process draws with; the salt names the parts of a .svg, which have
        # random names otherwise
        with matplotlib.rc_context({"svg.hashsalt": "pareto"}):
            figure = Figure(figsize=INCHES, dpi=DOTS, layout="tight")
            FigureCanvasAgg(figure)
            _draw(figure, points, quality_name, higher_is_better, limit)
            figure.savefig(temporary, metadata=_METADATA[path.suffix])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _draw(figure: Any, points: Sequence[Point], quality_name: str, higher_is_better: bool,
          limit: float | None) -> None:
    axes = figure.add_subplot()
    for passed, label, marker, colour in _KINDS:
        own = [point for point in points if point.passed is passed]
        if own:
            axes.scatter([point.ms for point in own], [point.quality for point in own], s=70, marker=marker,
                         color=colour, label=label, zorder=3)
    best = sorted((point.ms, point.quality) for point, on in
                  zip(points, front(points, higher_is_better), strict=True) if on)
    # level until the next point: the best quality that so many milliseconds buy
    axes.step([ms for ms, _ in best], [quality for _, quality in best], where="post", color="tab:blue", linewidth=1.2,
              label="Pareto front", zorder=2)
    if limit is not None:
        axes.axhline(limit, linestyle="--", linewidth=1, color="grey", label="the gate", zorder=1)
    axes.margins(0.15)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("milliseconds of an image on one pinned thread")
    axes.set_ylabel(f"{quality_name} ({'higher' if higher_is_better else 'lower'} is better)")
    axes.grid(alpha=0.3)
    axes.legend()
    _name(figure, axes, points)


def _name(figure: Any, axes: Any, points: Sequence[Point]) -> None:
    """Each name where it covers least of the markers and of the names that stand already."""
    figure.draw_without_rendering()  # what stands where is known only then
    room, renderer = axes.bbox, figure.canvas.get_renderer()
    spots = [axes.transData.transform((point.ms, point.quality)) for point in points]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in spots] + [axes.get_legend().get_window_extent(renderer).extents]
    for point in points:
        note = axes.annotate(point.name, (point.ms, point.quality), xytext=(0, 0), textcoords="offset points",
                             fontsize=8)
        tried = []
        for order, (right, up, end) in enumerate(_PLACES):
            note.set(position=(right, up), horizontalalignment=end)
            box = note.get_window_extent(renderer).extents
            inside = _shared(box, room.extents)
            covered = sum(_shared(box, other) for other in taken)
            tried.append((covered + (box[2] - box[0]) * (box[3] - box[1]) - inside, order, tuple(box)))
        _, order, box = min(tried)
        right, up, end = _PLACES[order]
        note.set(position=(right, up), horizontalalignment=end)
        taken.append(box)


def _shared(one: Sequence[float], two: Sequence[float]) -> float:
    """Area that two boxes (left, bottom, right, top) have in common."""
    return max(0.0, min(one[2], two[2]) - max(one[0], two[0])) * max(0.0, min(one[3], two[3]) - max(one[1], two[1]))
