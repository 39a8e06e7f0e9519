"""Where model folders are: the demo models' own, and the students that distillation has handed over.

Light: the run itself reads it, and must stay free of torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS, STUDENTS = ROOT / "models", ROOT / "build" / "students"
FILE = "model.yaml"


@dataclass(frozen=True)
class Student:
    """A model that learnt from another.

    Attributes:
        teacher: that model's name; empty where provenance.json does not say.
    """

    name: str
    teacher: str


def students(folder: Path = STUDENTS) -> list[Student]:
    """Every student there, by name."""
    # with a dot in front: one that is just being put in its place
    names = sorted(path.parent.name for path in folder.glob(f"*/{FILE}") if not path.parent.name.startswith("."))
    return [Student(name, _teacher(folder / name)) for name in names]


def model_folder(name: str, students: Path = STUDENTS) -> Path:
    """The folder of a model by its name: in models/, else among the students. If neither has it, where it would be in
    models/, for whoever reads it to complain about."""
    own = MODELS / name
    return students / name if not (own / FILE).is_file() and (students / name / FILE).is_file() else own


def files_digest(start: str, paths: Iterable[Path]) -> str:
    """Of a text and of files, by their names and contents; 64 hex digits."""
    state = hashlib.sha256(start.encode())
    for path in sorted(paths):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def _teacher(folder: Path) -> str:
    try:
        return str(json.loads((folder / "provenance.json").read_text())["teacher"]["name"])
    except (OSError, ValueError, KeyError, TypeError):  # a comparison with its teacher is left out, no more
        return ""
