"""The front, worked out by hand, and its picture."""

from __future__ import annotations

import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from configs.errors import SettingsError
from measure import pareto
from measure.pareto import Point, front, picture


def points(*values: tuple[float, float]) -> list[Point]:
    return [Point(f"model-{index}", ms, quality, None if index == 0 else index % 2 == 0)
            for index, (ms, quality) in enumerate(values)]


@pytest.mark.parametrize(("values", "higher", "expected"), [
    ([(10, 0.5), (5, 0.6), (8, 0.7)], False, [True, True, False]),
    ([(10, 0.5), (5, 0.6), (8, 0.7)], True, [False, True, True]),
    ([(10, 0.5), (10, 0.6)], False, [True, False]),
    ([(10, 0.5), (9, 0.5)], True, [False, True]),
    ([(10, 0.5), (10, 0.5), (11, 0.5)], True, [True, True, False]),
    ([(1, 0.1), (2, 0.2), (3, 0.3)], True, [True, True, True]),
    ([(1, 0.1), (2, 0.2), (3, 0.3)], False, [True, False, False]),
    ([(7, 0.9)], True, [True]),
    ([], False, []),
], ids=["lower is better", "higher is better", "as fast", "as good", "equal points", "a trade", "one beats all",
        "alone", "nothing"])
def test_a_point_is_on_the_front_unless_another_beats_it(values: list[tuple[float, float]], higher: bool,
                                                         expected: list[bool]) -> None:
    assert front(points(*values), higher) == expected


def several() -> list[Point]:
    return points((30.0, 0.60), (9.0, 0.61), (6.0, 0.63), (6.1, 0.631), (3.0, 0.8))


def figure_of(drawn: list[Point]) -> tuple[Any, Any]:
    """The figure itself, and what measures its texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=pareto.INCHES, dpi=pareto.DOTS)
    canvas = FigureCanvasAgg(figure)
    pareto._draw(figure, drawn, "MAE", False, None)
    return figure, canvas.get_renderer()


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    pytest.importorskip("matplotlib")
    return tmp_path / "folder" / "front.png"


def test_the_picture_is_a_png_of_a_readable_size(drawn: Path) -> None:
    picture(several(), drawn, "MAE", False, 0.62)
    data = drawn.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5000
    assert struct.unpack(">II", data[16:24]) == (900, 550)
    assert list(drawn.parent.iterdir()) == [drawn]  # no half-written file beside it


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_points_give_the_same_file(drawn: Path, suffix: str) -> None:
    files = [drawn.with_name(f"{name}{suffix}") for name in ("one", "two")]
    for file in files:
        picture(several(), file, "MAE", False, 0.62)
    one, two = (file.read_bytes() for file in files)
    assert one == two
    picture(several()[:1], files[0], "accuracy, %", True, None)  # replaces what was there
    assert files[0].read_bytes() != one


def test_names_do_not_cover_each_other(drawn: Path) -> None:
    figure, renderer = figure_of(points((30.0, 0.6), *((10.0 + step / 10, 0.7) for step in range(4))))
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert len(boxes) == 5
    assert not any(one.overlaps(two) for index, one in enumerate(boxes) for two in boxes[index + 1:])


def test_the_front_is_drawn_as_steps_to_the_right(drawn: Path) -> None:
    """What so many milliseconds buy is the quality of the last point before them."""
    [line] = figure_of(several())[0].axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    assert list(line.get_xdata()) == [3.0, 6.0, 9.0, 30.0]
    assert all(left > right for left, right in pairwise(line.get_ydata()))


def test_other_files_and_a_missing_package_are_refused(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"a \.png or a \.svg"):
        picture(several(), drawn.with_suffix(".jpg"), "MAE", False, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"pip install -e '\.\[distill\]'"):
        picture(several(), drawn, "MAE", False, None)
    assert not drawn.parent.exists()
