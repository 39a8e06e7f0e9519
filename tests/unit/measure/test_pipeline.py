"""The handlers' own code without a server around it: every handler that an archive can name."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from handlers.artifact import Artifact, NetworkFile
from measure.pipeline import HANDLERS, Pipeline
from models.formats import torchscript
from models.spec import BUILTIN_HANDLERS
from tests.unit.small_network import CLASSES, SPEC, batch, photo, small_network

OWN = '''
from handlers.vision import VisionHandler


class Largest(VisionHandler):
    def answer(self, output):
        return {"largest": int(output.argmax())}
'''


@pytest.fixture(autouse=True)
def no_plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pipeline sets the process's threads, which is not for the tests that follow."""
    monkeypatch.delenv("TSCPU_PLAN", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def answer(folder: Path, handler: str, outputs: int) -> dict[str, object]:
    """A photo's answer from an archive with this handler."""
    (folder / "eager.pt").write_bytes(torchscript(small_network(outputs), batch(2), ipex=False))
    labels = tuple("abcde"[:outputs])
    Artifact("small", "1.0", "eager", {"eager": NetworkFile("eager.pt")}, SPEC, 1, 1, handler, labels,
             {"food": (0, 2)}, top_k=3).write(folder)
    stream = io.BytesIO()
    Image.fromarray(photo(0)).save(stream, "PNG")
    return Pipeline(folder)(stream.getvalue())


def test_it_has_every_handler_that_a_model_can_have() -> None:
    assert {name: (own.__module__, own.__name__) for name, own in HANDLERS.items()} == BUILTIN_HANDLERS


@pytest.mark.parametrize(("handler", "outputs", "keys"), [
    ("classifier", CLASSES, {"predictions"}), ("food_recognizer", CLASSES, {"predictions", "food_probability"}),
    ("image_scorer", 1, {"score"})])
def test_each_answers_in_its_own_way(tmp_path: Path, handler: str, outputs: int, keys: set[str]) -> None:
    assert set(answer(tmp_path, handler, outputs)) == keys


def test_a_handler_of_the_users_own_is_taken_from_the_archive(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    assert answer(tmp_path, "own.py:Largest", CLASSES)["largest"] in range(CLASSES)
