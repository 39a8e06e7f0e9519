"""Resize, crop, normalise: one arithmetic for training, for building and for serving.

Decoding is `inputs`' business. Nothing here knows of requests or files.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# arrays that Pillow or a request owns are read, never written
warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class InputSpec:
    """How a photo becomes a network's input.

    Attributes:
        size: height and width of the network's square input, in pixels.
        resize: length of the photo's shorter side before the centre crop, in pixels.
        interpolation: "bilinear" or "bicubic", both with antialiasing (as Pillow does it).
        mean, std: per channel (RGB), for pixel values scaled to 0..1.
        exif: whether the EXIF orientation of a JPEG is applied.
        background: RGB that transparent pixels are laid on.
        max_pixels: photos with more pixels than this are refused before they are decoded.
        decode: "exact" (every pixel of a JPEG, as training saw it), or "fast" (a JPEG of at least twice the needed size
            is decoded at half, a quarter or an eighth of it: other pixels, in a fraction of the time).
    """

    size: int
    resize: int
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    exif: bool
    background: tuple[int, int, int]
    max_pixels: int
    decode: str = "exact"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> InputSpec:
        """The inverse of dataclasses.asdict, after a way through JSON."""
        tuples = {name: tuple(data[name]) for name in ("mean", "std", "background")}
        return cls(**{**data, **tuples})


class Preprocess:
    """uint8 photos → one float32 channels-last batch.

    Resizing is torch's antialiased uint8 interpolation: its pixels equal Pillow's to one level (two, in a few pixels,
    where a photo is enlarged), at a sixth of the time.
    """

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec
        # (x/255 - mean)/std as one multiply and one add
        std = torch.tensor(spec.std, dtype=torch.float32)
        # as long as a row of pixels, since torch vectorises along the last dimension: three would be no vector
        self._scale = (1.0 / (255.0 * std)).repeat(spec.size)
        self._shift = (-torch.tensor(spec.mean, dtype=torch.float32) / std).repeat(spec.size)

    def pixels(self, image: Image) -> torch.Tensor:
        """One photo, uint8 [height, width, 3], resized and cropped → uint8 [1, 3, size, size], channels-last in memory.

        A photo that has the network's size already passes through untouched.
        """
        size = self.spec.size
        height, width = image.shape[:2]
        # the batch dimension first: with unsqueeze after permute torch takes the image for channels-first, and resizes
        # it into planes, which takes half as long again and makes the next step gather its pixels one by one
        tensor = torch.from_numpy(image)[None].permute(0, 3, 1, 2)
        if (height, width) != (size, size):
            tensor = self._crop(self._resize(tensor, height, width))
        return tensor

    def _resize(self, tensor: torch.Tensor, height: int, width: int) -> torch.Tensor:
        short = self.spec.resize
        # floor of the longer side, as torchvision and timm do it
        target = (short, int(short * width / height)) if height <= width else (int(short * height / width), short)
        if target == (height, width):
            return tensor
        resized: torch.Tensor = torch.nn.functional.interpolate(
            tensor, size=target, mode=self.spec.interpolation, antialias=True, align_corners=False)
        return resized

    def _crop(self, tensor: torch.Tensor) -> torch.Tensor:
        size = self.spec.size
        height, width = tensor.shape[-2:]
        top, left = (round((side - size) / 2.0) for side in (height, width))
        return tensor[..., top:top + size, left:left + size]

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [N, 3, size, size] → float32 of the same shape, normalised, channels-last in memory."""
        count, size = len(pixels), self.spec.size
        rows = pixels.permute(0, 2, 3, 1).reshape(count, size, 3 * size).to(torch.float32)
        return rows.mul_(self._scale).add_(self._shift).view(count, size, size, 3).permute(0, 3, 1, 2)

    def __call__(self, images: list[Image]) -> torch.Tensor:
        """Photos of any sizes → float32 [N, 3, size, size]."""
        return self.normalise(torch.cat([self.pixels(image) for image in images]))
