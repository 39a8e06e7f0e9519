"""A record of `candidates` as a table, as Markdown and as a picture. Worked out from the record alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from measure.pareto import Point, picture
from measure.report import markdown as as_markdown


def points(record: dict[str, Any]) -> list[Point]:
    """The teacher first; quality is the first figure of the gate."""
    teacher, candidates = record["teacher"], record["candidates"]
    first = candidates[0]["gate"]["figures"][0]
    return [Point(teacher["name"], teacher["ms"], first["teacher"], None),
            *(Point(each["name"], each["ms"], each["gate"]["figures"][0]["student"], each["gate"]["passed"])
              for each in candidates)]


def higher_is_better(record: dict[str, Any]) -> bool:
    """Of that figure: accuracy is, an error is not."""
    return bool(record["candidates"][0]["gate"]["figures"][0]["name"] != "MAE")


def rows(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of a record: column names, and the teacher's line and one for each candidate."""
    figures = record["candidates"][0]["gate"]["figures"]
    columns = ["model", *(cell for each in figures for cell in (each["name"], "lost, allowed")), "ms, one thread",
               "speed-up", "Pareto", "gate"]
    teacher = record["teacher"]
    own = (cell for each in figures for cell in (_shown(each, each["teacher"]), ""))
    lines = [[f"{teacher['name']} (teacher)", *own, f"{teacher['ms']:.2f}", "", "*" if teacher["pareto"] else "", ""]]
    for each in record["candidates"]:
        gate, speed = each["gate"], each["speedup"]
        lines.append([
            each["name"],
            *(cell for figure in gate["figures"] for cell in (_shown(figure, figure["student"]), _lost(figure))),
            f"{each['ms']:.2f}", f"{speed['median']:.2f} ({speed['min']:.2f}–{speed['max']:.2f})×",
            "*" if each["pareto"] else "", "PASS" if gate["passed"] else "FAIL"])
    return columns, lines


def markdown(record: dict[str, Any]) -> str:
    """The same as Markdown."""
    columns, lines = rows(record)
    return as_markdown(columns, lines) + "\n"


def draw(record: dict[str, Any], path: Path) -> None:
    """The picture of a record."""
    first = record["candidates"][0]["gate"]["figures"][0]
    higher = higher_is_better(record)
    limit = first["teacher"] - first["allowed"] if higher else first["teacher"] * (1.0 + first["allowed"])
    picture(points(record), path, f"{first['name']} on held-out photos", higher, limit)


def _shown(figure: dict[str, Any], value: float) -> str:
    return f"{value:.1f}" if figure["name"].startswith("accuracy") else f"{value:.3f}"


def _lost(figure: dict[str, Any]) -> str:
    """What is lost, its interval, and what may be, in the figure's own unit."""
    if figure["name"] == "MAE":
        lost, low, high, allowed = (100.0 * figure[key] for key in ("drop", "low", "high", "allowed"))
        return f"{lost:+.1f} % ({low:+.1f} to {high:+.1f}), ≤ {allowed:g} %"
    digits = 1 if figure["name"].startswith("accuracy") else 3
    lost, low, high = (f"{figure[key]:+.{digits}f}" for key in ("drop", "low", "high"))
    return f"{lost} ({low} to {high}), ≤ {figure['allowed']:g}"
