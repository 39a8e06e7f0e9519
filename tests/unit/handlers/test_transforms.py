"""Serving's pixels are training's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from handlers.transforms import InputSpec, Preprocess
from models.datasets import load_photo


def spec(size: int, resize: int, interpolation: str = "bicubic") -> InputSpec:
    return InputSpec(size, resize, interpolation, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), True, (255,) * 3, 10**8)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("photo", ["china", "chelsea"])
def test_resize_equals_pillows_to_one_level(photo: str, interpolation: str) -> None:
    image = load_photo(photo)
    height, width = image.shape[:2]
    target = (int(256 * width / height), 256) if height <= width else (256, int(256 * height / width))
    resized = Image.fromarray(image).resize(target, getattr(Image.Resampling, interpolation.upper()))
    left, top = round((target[0] - 224) / 2), round((target[1] - 224) / 2)
    expected = np.asarray(resized)[top:top + 224, left:left + 224].astype(int)
    found = Preprocess(spec(224, 256, interpolation)).pixels(image)[0].permute(1, 2, 0).numpy().astype(int)
    assert np.abs(found - expected).max() <= 1


def test_a_photo_of_the_right_size_is_not_touched() -> None:
    image = load_photo("coffee")[:224, :224].copy()
    assert np.array_equal(Preprocess(spec(224, 256)).pixels(image)[0].permute(1, 2, 0).numpy(), image)


def test_normalise_is_the_textbooks_and_channels_last() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    found = Preprocess(spec(32, 32))([image, image])
    expected = (image / 255.0 - (0.4, 0.5, 0.6)) / (0.2, 0.3, 0.4)
    assert np.abs(found[1].permute(1, 2, 0).numpy() - expected).max() < 1e-5
    assert found.is_contiguous(memory_format=torch.channels_last) and found.dtype == torch.float32
