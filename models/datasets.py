"""Real photos that come with installed packages, and the synthetic-degradation set cut from them.

Every crop of the set has a known severity, so its label is honest: 10 for an untouched crop, 1 for the worst.
Splitting is always by photo: crops of one scene never stand on both sides.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PILImage
from PIL import ImageFilter

from handlers.errors import ArtifactError

Image = NDArray[np.uint8]

# photo → (package, file, scene). Photos of one scene are one group when the set is split.
PHOTOS: dict[str, tuple[str, str, str]] = {
    "astronaut": ("skimage", "data/astronaut.png", "astronaut"),
    "brick": ("skimage", "data/brick.png", "brick"),
    "camera": ("skimage", "data/camera.png", "camera"),
    "chelsea": ("skimage", "data/chelsea.png", "chelsea"),
    "coffee": ("skimage", "data/coffee.png", "coffee"),
    "coins": ("skimage", "data/coins.png", "coins"),
    "grass": ("skimage", "data/grass.png", "grass"),
    "gravel": ("skimage", "data/gravel.png", "gravel"),
    "hubble": ("skimage", "data/hubble_deep_field.jpg", "hubble"),
    "ihc": ("skimage", "data/ihc.png", "ihc"),
    "motorcycle_left": ("skimage", "data/motorcycle_left.png", "motorcycle"),
    "motorcycle_right": ("skimage", "data/motorcycle_right.png", "motorcycle"),
    "retina": ("skimage", "data/retina.jpg", "retina"),
    "rocket": ("skimage", "data/rocket.jpg", "rocket"),
    "china": ("sklearn", "datasets/images/china.jpg", "china"),
    "flower": ("sklearn", "datasets/images/flower.jpg", "flower"),
}
HELD_OUT = ("coffee", "chelsea", "china")


def photo_path(name: str) -> Path:
    """Where an installed package keeps a photo of PHOTOS.

    Raises:
        ArtifactError: the package is not installed, or no longer ships the photo.
    """
    package, file, _ = PHOTOS[name]
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ArtifactError(f"the demo photo {name!r} is not there", where=f"{package}/{file}",
                            remedy="pip install -e '.[demo]'")
    return path


def load_photo(name: str) -> Image:
    """A photo of PHOTOS as uint8 RGB [height, width, 3]."""
    with PILImage.open(photo_path(name)) as image:
        return np.asarray(image.convert("RGB"))


def blur(image: Image, severity: float, rng: np.random.Generator) -> Image:
    """Gaussian blur, sigma 0.3 to 5.3 pixels."""
    sigma = 0.3 + 5.0 * severity**1.5
    return np.asarray(PILImage.fromarray(image).filter(ImageFilter.GaussianBlur(sigma)))


def noise(image: Image, severity: float, rng: np.random.Generator) -> Image:
    """Gaussian noise, standard deviation 2 to 50 of 255 levels."""
    sigma = 2.0 + 48.0 * severity**1.5
    return np.clip(image + rng.normal(0.0, sigma, image.shape), 0, 255).astype(np.uint8)


def jpeg(image: Image, severity: float, rng: np.random.Generator) -> Image:
    """JPEG at quality 90 down to 3."""
    buffer = io.BytesIO()
    PILImage.fromarray(image).save(buffer, "JPEG", quality=max(2, round(90.0 * np.exp(-3.4 * severity))))
    with PILImage.open(buffer) as decoded:
        return np.asarray(decoded.convert("RGB"))


def exposure(image: Image, severity: float, rng: np.random.Generator) -> Image:
    """Over- or underexposure: pixel values times 2 to the power of up to 2.5 either way, clipped."""
    stops = 2.5 * severity * rng.choice((-1.0, 1.0))
    exposed: Image = np.clip(image * 2.0**stops + 0.5, 0, 255).astype(np.uint8)
    return exposed


DEGRADATIONS: dict[str, Callable[[Image, float, np.random.Generator], Image]] = {
    "blur": blur, "noise": noise, "jpeg": jpeg, "exposure": exposure,
}


def degrade(image: Image, kind: str, severity: float, rng: np.random.Generator) -> Image:
    """A degraded copy of uint8 [height, width, 3]; severity 0 (untouched) to 1, even steps to the eye."""
    return image if severity == 0 else DEGRADATIONS[kind](image, severity, rng)


def score_of(severity: float) -> float:
    """The label of a severity: 10 for untouched, 1 for the worst."""
    return 10.0 - 9.0 * severity


def square_crop(image: Image, size: int, rng: np.random.Generator) -> Image:
    """A square taken at random, resized to `size` pixels a side. Never enlarged: that would be a blur with no label."""
    height, width = image.shape[:2]
    side = int(rng.integers(min(size, height, width), min(height, width) + 1))
    top, left = int(rng.integers(0, height - side + 1)), int(rng.integers(0, width - side + 1))
    crop = PILImage.fromarray(image[top:top + side, left:left + side])
    return np.asarray(crop.resize((size, size), PILImage.Resampling.BICUBIC))


@dataclass(frozen=True)
class Crop:
    """One labelled crop: uint8 [size, size, 3], its photo, and what was done to it (after the last resize)."""

    image: Image
    photo: str
    scene: str
    kind: str
    severity: float

    @property
    def score(self) -> float:
        return score_of(self.severity)


def degradation_set(photos: tuple[str, ...], crops_per_photo: int, size: int, seed: int) -> list[Crop]:
    """Crops of each photo at all kinds and evenly spread severities. A pure function of its arguments.

    Args:
        photos: names in PHOTOS.
        size: pixels a side; crops are degraded at this size, since a later resize would hide the damage.
    """
    crops = []
    for photo in photos:
        # seeded by the photo too: leaving a photo out changes no other photo's crops
        rng = np.random.default_rng([seed, *photo.encode()])
        image = load_photo(photo)
        for index in range(crops_per_photo):
            kind = tuple(DEGRADATIONS)[index % len(DEGRADATIONS)]
            severity = float(rng.uniform(0.0, 1.0)) if index % 12 else 0.0
            crop = degrade(square_crop(image, size, rng), kind, severity, rng)
            crops.append(Crop(crop, photo, PHOTOS[photo][2], kind, severity))
    return crops
