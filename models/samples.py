"""Photos to calibrate a quantized network with, and others to judge every built network on.

A model's own photos (model.yaml: photos) if there are any, else those that come with installed packages. No photo
stands on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from handlers import inputs
from handlers.errors import ArtifactError, InputError
from handlers.transforms import Image, InputSpec
from models import datasets
from models.photos import SHARE as OWN_SHARE
from models.photos import SUFFIXES as _SUFFIXES
from models.spec import ModelSpec

CALIBRATION, HELD_OUT = 300, 120  # images of each side; with 30 to calibrate, one confident answer in twenty changes
MILD = 0.35  # severity up to which a damaged crop is still what somebody may send to a classifier
SEED = 7


@dataclass(frozen=True)
class Sample:
    """One image, as a request would bring it.

    Attributes:
        image: uint8 [height, width, 3].
        name: for messages: the photo, and what was done to it.
        score: the label, for the demo scorer's scale; None elsewhere.
    """

    image: Image
    name: str
    score: float | None = None


def calibration(spec: ModelSpec, folder: Path) -> list[Sample]:
    """What quantization may look at.

    Raises:
        ArtifactError: there are no photos.
    """
    if spec.photos is not None:
        return _own(spec, folder, held_out=False)[:CALIBRATION]
    photos = tuple(name for name in datasets.PHOTOS if name not in datasets.HELD_OUT)
    return _crops(spec, photos, CALIBRATION)


def held_out(spec: ModelSpec, folder: Path) -> list[Sample]:
    """What built networks are judged on; nothing, where there are no photos.

    Raises:
        ArtifactError: a photo of the model's own cannot be read.
    """
    if spec.photos is not None:
        return _own(spec, folder, held_out=True)[:HELD_OUT]
    try:
        return _crops(spec, datasets.HELD_OUT, HELD_OUT)
    except ArtifactError:  # the packages that bring them are not installed
        return []


def _crops(spec: ModelSpec, photos: Sequence[str], count: int) -> list[Sample]:
    """Damaged crops as evenly from all photos as can be: of every severity for a scorer, mild for the rest."""
    scorer = spec.handler == "image_scorer"
    each = -(-count // len(photos)) * (1 if scorer else 4)
    # a scorer's crops reach it without being resized, or their damage would be another one
    size = spec.input.resolved().resize if scorer else spec.input.size
    crops = [crop for crop in datasets.degradation_set(tuple(photos), each, size, SEED)
             if scorer or crop.severity <= MILD]
    by_photo = [[crop for crop in crops if crop.photo == photo] for photo in photos]
    turns = [crop for turn in zip(*by_photo, strict=False) for crop in turn]
    labelled = scorer and spec.head is not None and spec.head.train is not None
    return [Sample(crop.image, f"{crop.photo}, {crop.kind} {crop.severity:.2f}", crop.score if labelled else None)
            for crop in turns[:count]]


def _own(spec: ModelSpec, folder: Path, held_out: bool) -> list[Sample]:
    """The model's own photos: whole ones first, then crops of them until there are enough."""
    root = folder / str(spec.photos)
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES)
    # by content, so that copies of one photo never stand on both sides
    digests = {path: hashlib.sha256(path.read_bytes()).digest() for path in paths}
    paths = [path for path in paths if (digests[path][0] % OWN_SHARE == 0) == held_out]
    if not paths:
        raise ArtifactError("there are too few photos" if digests else "there are no photos",
                            where=f"model.yaml: photos: {root}", why=f"{len(digests)} of {', '.join(_SUFFIXES)}",
                            remedy="give a folder with a hundred or more")
    images = [(path.relative_to(root), read_photo(path, spec.input.resolved())) for path in paths[:CALIBRATION]]
    samples = [Sample(image, str(name)) for name, image in images]
    rng = np.random.default_rng(SEED)
    while len(samples) < HELD_OUT:
        name, image = images[len(samples) % len(images)]
        samples.append(Sample(datasets.square_crop(image, spec.input.size, rng), f"{name}, a crop"))
    return samples


def read_photo(path: Path, spec: InputSpec) -> Image:
    """A photo as a request would bring it, uint8 [height, width, 3].

    Raises:
        ArtifactError: it is not there, or no photo.
    """
    try:
        return inputs.decode(path.read_bytes(), spec)
    except (OSError, InputError) as error:
        raise ArtifactError("a photo cannot be read", where=str(path), why=str(error),
                            remedy="repair it, or take it out of the folder") from error
