"""The handlers' own decode, preprocess, infer and answer on an unpacked archive, without TorchServe around them.

What the in-process rate, LitServe and the reference answers have in common: the code of `handlers`, called in the
order in which VisionHandler calls it. Imports torch; the run itself never imports this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from handlers import inputs, placement
from handlers.artifact import Artifact
from handlers.classifier import Classifier
from handlers.food_recognizer import FoodRecognizer
from handlers.image_scorer import ImageScorer
from handlers.runtimes import open_runtime
from handlers.transforms import Preprocess
from handlers.vision import VisionHandler
from models.own_code import import_file

HANDLERS: dict[str, type[VisionHandler]] = {"classifier": Classifier, "food_recognizer": FoodRecognizer,
                                            "image_scorer": ImageScorer}
WARM_UP_RUNS = 5


class Pipeline:
    """One model in this process, on the next free slot of the plan that TSCPU_PLAN names."""

    def __init__(self, folder: Path) -> None:
        self.artifact = Artifact.read(folder)
        self.place = placement.take_place(self.artifact.name)
        runtime = self.artifact.serving_runtime(self.place.runtime)
        self.network = open_runtime(runtime, folder / self.artifact.files[runtime].file, self.place.threads,
                                    self.artifact.input)
        self._handler = _handler(self.artifact.handler, folder)()
        self._handler.artifact, self._handler.network = self.artifact, self.network
        self._handler.preprocessing = Preprocess(self.artifact.input)
        size = self.artifact.input.size
        for _ in range(WARM_UP_RUNS):
            self.infer(self.tensor(np.zeros((size, size, 3), np.uint8)))
        if self.place.slot is not None:
            placement.pin(self.place.cpus)

    def decode(self, row: Mapping[str, Any]) -> inputs.Array:
        """A request's row, as TorchServe hands it over, → its one photo or tensor."""
        return inputs.parse(row, {}, self.artifact.input).items[0]

    def tensor(self, item: inputs.Array) -> torch.Tensor:
        """uint8 [H, W, 3] → [1, 3, S, S], as the runtime wants it."""
        with torch.inference_mode():
            return self._handler.tensor([item])

    def infer(self, batch: torch.Tensor) -> torch.Tensor:
        """[1, 3, S, S] → the network's row of outputs."""
        with torch.inference_mode():
            return self.network(batch)[0]

    def answer(self, output: torch.Tensor) -> dict[str, Any]:
        """A row of outputs → the handler's answer."""
        with torch.inference_mode():
            return self._handler.answer(output)

    def __call__(self, body: bytes) -> dict[str, Any]:
        """A request's body → its answer."""
        return self.answer(self.infer(self.tensor(self.decode({"body": bytearray(body)}))))


def _handler(name: str, folder: Path) -> type[VisionHandler]:
    """The class that artifact.json names; one of the user's own, FILE.py:CLASS, lies in the archive."""
    if name in HANDLERS:
        return HANDLERS[name]
    file, _, own = name.partition(":")
    return cast(type[VisionHandler], getattr(import_file(folder / file, Path(file).stem), own))
