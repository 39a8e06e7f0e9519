"""A network that is written, opened and called in a moment, and still has what runtimes treat specially."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from handlers.transforms import InputSpec

SIZE, CLASSES = 32, 5
SPEC = InputSpec(SIZE, SIZE, "bicubic", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), True, (255,) * 3, 10**8)


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs, momentum=None),
                         nn.ReLU())


def small_network(outputs: int = CLASSES) -> nn.Module:
    """Five convolutions with batch norm, pooling, a linear layer; the same weights at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(_block(3, 8, 2), _block(8, 16), _block(16, 16), _block(16, 16, 2), _block(16, 24),
                                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, outputs))
        with torch.no_grad():
            network(torch.randn(8, 3, SIZE, SIZE))  # statistics for batch norm, or hardly more than zeros come out
            network[-1].weight.mul_(10.0)
    return network.eval()


def batch(count: int, seed: int = 0) -> torch.Tensor:
    """float32 [count, 3, SIZE, SIZE], channels-last."""
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)).contiguous(
        memory_format=torch.channels_last)


def photo(seed: int, height: int = SIZE, width: int = SIZE) -> NDArray[np.uint8]:
    """uint8 [height, width, 3]: blotches of one colour, so that networks see something."""
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 256, 3)
    blotches = np.kron(rng.integers(-60, 60, (-(-height // 8), -(-width // 8), 3)), np.ones((8, 8, 1)))
    return np.clip(colour + blotches[:height, :width], 0, 255).astype(np.uint8)
