"""Imports point one way, and nothing is unpickled at serving time."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"handlers": {"handlers"}, "configs": {"configs"}, "serving": {"serving", "configs"},
         "models": {"models", "handlers"}, "measure": {"measure", "serving", "configs", "models", "handlers"},
         "deploy": {"deploy", "serving", "configs"},
         "scripts": {"scripts", "deploy", "measure", "serving", "configs", "models", "handlers"}}
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    assert imported(path) & set(ROOMS) <= ROOMS[room]
    if room in ("configs", "serving"):
        assert not imported(path) & {"torch", "sklearn", "intel_extension_for_pytorch"}
    if room == "handlers":
        assert "sklearn" not in imported(path)


def test_nothing_is_unpickled_at_serving_time() -> None:
    refusals = re.compile(r"allow_pickle=False|without pickle|no pickle|never pickled?|unpickl")
    for path in (ROOT / "handlers").glob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert "pickle" not in line or refusals.search(line), f"{path.name}:{number}: {line}"
        assert "torch.load(" not in path.read_text()
