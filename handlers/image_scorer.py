"""ImageScorer: one score an image, from a network that ends in its regression head."""

from __future__ import annotations

import math
from typing import Any

import torch

from handlers.vision import VisionHandler


class ImageScorer(VisionHandler):
    """Answers {"score": …}; the network's output is the score itself, [N] or [N, 1]."""

    def answer(self, output: torch.Tensor) -> dict[str, Any]:
        score = output.item()
        if not math.isfinite(score):
            raise ValueError(f"the network's score is {score}")
        return {"score": round(score, 6)}
