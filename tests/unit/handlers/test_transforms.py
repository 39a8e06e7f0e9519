"""Serving's pixels are training's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from handlers.transforms import InputSpec, Preprocess
from models.datasets import load_photo

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # pytest lifts our filter


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


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size, resize", [(224, 256), (225, 257), (224, 224), (223, 256), (64, 73), (300, 700)])
@pytest.mark.parametrize("shape", [(427, 640), (640, 427), (333, 334), (301, 301), (80, 61), (9, 200), (200, 9)])
def test_resize_and_crop_are_torchvisions(shape: tuple[int, int], size: int, resize: int, interpolation: str) -> None:
    photo = Image.fromarray(load_photo("coffee")).resize((shape[1], shape[0]))
    mode = functional.InterpolationMode(interpolation)
    expected = np.asarray(functional.center_crop(functional.resize(photo, resize, mode), size)).astype(int)
    found = Preprocess(spec(size, resize, interpolation)).pixels(np.asarray(photo))
    assert found.shape == (1, 3, size, size)
    assert found.dtype == torch.uint8
    apart = np.abs(found[0].permute(1, 2, 0).numpy() - expected)
    assert apart.max() <= (1 if min(shape) >= resize else 2)
    assert (apart > 1).mean() < 1e-4


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 3)])
def test_p29_the_smallest_and_thinnest_photos(shape: tuple[int, int]) -> None:
    found = Preprocess(spec(224, 256)).pixels(np.full((*shape, 3), (10, 20, 30), np.uint8))
    assert found.shape == (1, 3, 224, 224)
    assert (found[0].permute(1, 2, 0) == torch.tensor([10, 20, 30])).all()


def test_pixels_in_any_order_of_memory() -> None:
    image = load_photo("coffee")
    preprocess = Preprocess(spec(224, 256))
    expected = preprocess.pixels(image.copy())
    for same in (np.asfortranarray(image), np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0),
                 np.dstack([image, image])[:, :, :3]):
        assert torch.equal(preprocess.pixels(same), expected)


def test_a_batch_of_unlike_photos_is_its_photos() -> None:
    preprocess = Preprocess(spec(64, 73))
    images = [load_photo(name) for name in ("coffee", "chelsea", "astronaut")] + [np.zeros((64, 64, 3), np.uint8)]
    batch = preprocess(images)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(row, preprocess([image])[0]) for row, image in zip(batch, images, strict=True))


def test_a_photo_of_the_right_size_is_not_touched() -> None:
    image = load_photo("coffee")[:224, :224].copy()
    assert np.array_equal(Preprocess(spec(224, 256)).pixels(image)[0].permute(1, 2, 0).numpy(), image)


def test_normalise_is_the_textbooks_and_channels_last() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    found = Preprocess(spec(32, 32))([image, image])
    expected = (image / 255.0 - (0.4, 0.5, 0.6)) / (0.2, 0.3, 0.4)
    assert np.abs(found[1].permute(1, 2, 0).numpy() - expected).max() < 1e-5
    assert found.is_contiguous(memory_format=torch.channels_last) and found.dtype == torch.float32


def random_pixels(count: int, size: int) -> torch.Tensor:
    """uint8 [count, 3, size, size], channels-last in memory."""
    levels = np.random.default_rng(count).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return torch.from_numpy(levels).permute(0, 3, 1, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("size", [8, 31, 32])
def test_normalise_is_one_multiply_and_one_add_to_the_last_bit(count: int, size: int) -> None:
    """Row by row it must not become another arithmetic: archives that were built before must keep their answers."""
    rule, pixels = spec(size, size), random_pixels(count, size)
    std = torch.tensor(rule.std, dtype=torch.float32)
    scale = (1.0 / (255.0 * std)).view(1, 3, 1, 1)
    shift = (-torch.tensor(rule.mean, dtype=torch.float32) / std).view(1, 3, 1, 1)
    before = pixels.clone()
    found = Preprocess(rule).normalise(pixels)
    assert torch.equal(found, pixels.float() * scale + shift)
    assert found.shape == (count, 3, size, size) and found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pixels, before)


def test_normalise_takes_pixels_in_any_order_of_memory() -> None:
    preprocess, pixels = Preprocess(spec(16, 16)), random_pixels(3, 20)[..., 2:18, 2:18]
    expected = preprocess.normalise(pixels.contiguous(memory_format=torch.channels_last))
    for same in (pixels, pixels.contiguous()):
        assert torch.equal(preprocess.normalise(same), expected)
        assert preprocess.normalise(same).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("shape", [(427, 640), (640, 427), (301, 301), (256, 400), (80, 61), (9, 200)])
def test_resizing_channels_last_gives_the_pixels_of_planes(shape: tuple[int, int], interpolation: str) -> None:
    image = np.asarray(Image.fromarray(load_photo("coffee")).resize((shape[1], shape[0])))
    short = 256
    target = (short, int(short * shape[1] / shape[0])) if shape[0] <= shape[1] else (
        int(short * shape[0] / shape[1]), short)
    planes = torch.from_numpy(image.transpose(2, 0, 1).copy())[None]
    resized = torch.nn.functional.interpolate(planes, size=target, mode=interpolation, antialias=True,
                                              align_corners=False)
    top, left = (round((side - 224) / 2) for side in target)
    found = Preprocess(spec(224, 256, interpolation)).pixels(image)
    assert torch.equal(found, resized[..., top:top + 224, left:left + 224])
    assert found.stride(1) == 1  # channels last, so that rows are normalised as they lie
