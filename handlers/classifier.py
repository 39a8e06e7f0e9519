"""Classifier: the most probable labels of any network that ends in class logits."""

from __future__ import annotations

import math
from typing import Any

import torch

from handlers.vision import VisionHandler


class Classifier(VisionHandler):
    """Answers {"predictions": [{"label", "probability"}, …]}, most probable first.

    The network gives logits, [N, classes].
    """

    def answer(self, output: torch.Tensor) -> dict[str, Any]:
        probabilities = output.float().softmax(0)
        values, indices = probabilities.topk(self.artifact.top_k)
        return {"predictions": self.named(indices.tolist(), values.tolist())}

    def named(self, indices: list[int], probabilities: list[float]) -> list[dict[str, Any]]:
        """Class indices and their probabilities as a client reads them."""
        if not all(map(math.isfinite, probabilities)):
            raise ValueError(f"the network's probabilities are {probabilities}")
        labels = self.artifact.labels
        return [{"label": labels[index], "probability": round(probability, 6)}
                for index, probability in zip(indices, probabilities, strict=True)]
