"""FoodRecognizer: the most probable food labels, and whether the photo shows food or drink at all."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from handlers.classifier import Classifier


class FoodRecognizer(Classifier):
    """Answers {"food_probability": …, "predictions": […]}.

    Probabilities are over all classes of the network, so a photo without food gets a low food_probability and low
    predictions. Which classes are food is the artifact's group "food".
    """

    def answer(self, output: torch.Tensor) -> dict[str, Any]:
        food = self.food
        probabilities = output.float().softmax(0)[food]
        values, order = probabilities.topk(min(self.artifact.top_k, len(food)))
        return {"food_probability": round(probabilities.sum().item(), 6),
                "predictions": self.named(food[order].tolist(), values.tolist())}

    @cached_property
    def food(self) -> torch.Tensor:
        """Indices of the food classes."""
        return torch.tensor(self.artifact.groups["food"])
