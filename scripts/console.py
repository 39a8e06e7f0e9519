"""What all commands share: consoles, tables, progress, errors as messages, and where things are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from configs.errors import ToolkitError as PodError

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"
BUILD = ROOT / "build"
ARTIFACTS, MODEL_STORE, CACHE, RUN = BUILD / "artifacts", BUILD / "model-store", BUILD / "cache", BUILD / "run"

# before torch is imported anywhere: the extension re-registers kernels, and torch would say so at length
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, soft_wrap=True)


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Errors that are raised on purpose become messages and exit code 2; bugs keep their traceback."""
    try:
        yield
    except Exception as error:
        if not is_ours(error):
            raise
        err.print(f"[bold red]error:[/] {_escape(str(error))}")
        raise typer.Exit(2) from None


def is_ours(error: Exception) -> bool:
    """Whether an error was raised on purpose. handlers.errors is looked up only if something has imported it."""
    twin = sys.modules.get("handlers.errors")
    return isinstance(error, PodError) or (twin is not None and isinstance(error, twin.ToolkitError))


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table as every command prints it; cells wrap instead of being cut."""
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold", expand=False)
    for column in columns:
        result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(*(_escape(str(cell)) for cell in row))
    return result


def print_json(value: Any) -> None:
    """For machines."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with rate and remaining time for each thing that reports (what, done, total).

    Where the output is no terminal, a line when each thing starts and ends.
    """
    if not err.is_terminal:
        yield _line_progress()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  TimeRemainingColumn(), console=err) as bars:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield report


def _line_progress() -> Callable[[str, int, int], None]:
    import time

    started: dict[str, float] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in started:
            started[what] = time.monotonic()
            err.print(f"{what} …")
        if done >= total:
            err.print(f"{what}: done in {time.monotonic() - started.pop(what):.1f} s")

    return report
