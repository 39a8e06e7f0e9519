"""What a student learns from: photos as canvases that windows are cut from, with labels and the teacher's answers.

Both are worked out once and kept, since a teacher costs more than all else; a run that was killed goes on where it was.
Where photos come from is a `Source`: the demo's degradation set, or a folder of the user's own.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from handlers.errors import ArtifactError
from handlers.runtimes import Network
from handlers.transforms import Image, InputSpec, Preprocess
from models import datasets
from models.photos import Photo, digest
from models.samples import read_photo

Progress = Callable[[str, int, int], None]
FITS = ("crop", "resize")
_SAVED_EVERY = 128  # photos


@dataclass(frozen=True)
class Item:
    """One photo.

    Attributes:
        image: uint8 [height, width, 3].
        label: a score, a class index, or None.
        group: items of one group are views of one scene.
    """

    image: Image
    label: float | int | None
    group: int
    name: str


class Source(Protocol):
    """Photos in a fixed order.

    Attributes:
        key: tells one content from another.
        labelled: whether every item has a label.
    """

    key: str
    labelled: bool

    def __len__(self) -> int: ...

    def items(self, start: int = 0) -> Iterator[Item]: ...


class DegradedCrops:
    """The demo's set: crops of some photos at known damage, labelled 10 (untouched) to 1.

    Args:
        photos: names in datasets.PHOTOS.
        size: of the crops, pixels a side: the teacher's, so that no resize hides the damage.
    """

    labelled = True

    def __init__(self, photos: Sequence[str], crops_per_photo: int, size: int, seed: int) -> None:
        self.photos, self.each, self.size, self.seed = tuple(photos), crops_per_photo, size, seed
        code = inspect.getsource(datasets)
        self.key = hashlib.sha256(repr((self.photos, self.each, size, seed, code)).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.photos) * self.each

    def items(self, start: int = 0) -> Iterator[Item]:
        scenes = sorted({datasets.PHOTOS[photo][2] for photo in self.photos})
        for index in range(start // self.each, len(self.photos)):
            photo = self.photos[index]
            crops = datasets.degradation_set((photo,), self.each, self.size, self.seed)
            for crop in crops[max(0, start - index * self.each):]:
                yield Item(crop.image, crop.score, scenes.index(crop.scene),
                           f"{crop.photo}, {crop.kind} {crop.severity:.2f}")


class PhotoFiles:
    """A side of a folder of the user's own."""

    def __init__(self, photos: Sequence[Photo], spec: InputSpec) -> None:
        self.photos, self.spec = list(photos), spec
        self.labelled = bool(photos) and all(photo.label is not None for photo in photos)
        self.key = digest(photos)

    def __len__(self) -> int:
        return len(self.photos)

    def items(self, start: int = 0) -> Iterator[Item]:
        for index, photo in enumerate(self.photos[start:], start):
            yield Item(read_photo(photo.path, self.spec), photo.label, index, photo.name)


@dataclass(frozen=True)
class Lessons:
    """A side of the data, prepared.

    Attributes:
        canvases: uint8 [N, side, side, 3], on disk; empty where only answers were asked for.
        teacher: float32, scores [N] or logits [N, classes]; None for a student that learns from labels alone.
        labels: float32 scores [N], int64 class indices [N], or None.
        groups: int64 [N].
    """

    canvases: NDArray[np.uint8]
    teacher: torch.Tensor | None
    labels: torch.Tensor | None
    groups: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.groups)


def student_input(teacher: InputSpec, size: int, fit: str, mean: tuple[float, float, float],
                  std: tuple[float, float, float]) -> InputSpec:
    """How a photo becomes the student's input.

    Args:
        fit: "crop": the centre of the pixels that the teacher sees, none of them resized again: what a scorer needs,
            since a resize hides the damage that it is to judge. "resize": all of what the teacher sees, smaller.

    Raises:
        ArtifactError: a crop larger than what it is cut from.
    """
    if fit == "crop" and size > teacher.size:
        raise ArtifactError("a crop cannot be larger than the teacher's input", where=f"--size {size}",
                            why=f"the teacher's is {teacher.size}", remedy="--fit resize, or a smaller size")
    resize = teacher.resize if fit == "crop" else max(size, round(size * teacher.resize / teacher.size))
    return replace(teacher, size=size, resize=resize, mean=mean, std=std)


def canvas_of(teacher: InputSpec, student: InputSpec, fit: str) -> InputSpec:
    """The square that training cuts windows of the student's size from."""
    if fit == "crop":
        return teacher
    return replace(student, size=student.resize)


def prepare(source: Source, answer: Callable[[torch.Tensor], torch.Tensor], teacher: InputSpec, key: str,
            canvas: InputSpec | None, cache: Path, progress: Progress, what: str) -> Lessons:
    """A source's canvases, labels and the teacher's answers, from the cache as far as they are there.

    Args:
        answer: uint8 [1, 3, S, S] pixels as the teacher sees them → its outputs [1, …].
        teacher: how it sees them.
        key: tells one teacher from another.
        canvas: None where no canvases are wanted.
        what: for the progress bar.
    """
    wanted = repr((source.key, key, canvas and (canvas.size, canvas.resize), teacher))
    folder = cache / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        drawn = None if canvas is None else Preprocess(canvas)
        _fill(source, answer, Preprocess(teacher), drawn, partial, progress, what)
        partial.rename(folder)
    loaded = {path.stem: np.load(path, mmap_mode="r" if path.stem == "canvases" else None, allow_pickle=False)
              for path in folder.glob("*.npy")}
    labels = torch.from_numpy(loaded["labels"]) if source.labelled else None
    if labels is not None and labels.is_floating_point():
        labels = labels.float()
    return Lessons(loaded.get("canvases", np.zeros((len(source), 0, 0, 3), np.uint8)),
                   torch.from_numpy(loaded["teacher"]), labels, loaded["groups"])


def _fill(source: Source, answer: Callable[[torch.Tensor], torch.Tensor], teacher: Preprocess,
          canvas: Preprocess | None, folder: Path, progress: Progress, what: str) -> None:
    """Writes into `folder`, going on after what an earlier run has finished."""
    state, count = folder / "done.json", len(source)
    done = json.loads(state.read_text()) if state.is_file() else 0
    if not done:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    arrays: dict[str, Any] = {}

    def put(name: str, index: int, row: Any, kind: type) -> None:
        if name not in arrays:
            path = folder / f"{name}.npy"
            arrays[name] = open_memmap(path, "r+") if done else open_memmap(path, "w+", kind, (count, *np.shape(row)))
        arrays[name][index] = row

    for index, item in enumerate(source.items(done), done):
        if index % 16 == 0:
            progress(what, index, count)
        seen = teacher.pixels(item.image)
        with torch.inference_mode():
            row = answer(seen)[0].float().numpy()
        if not np.isfinite(row).all():
            raise ArtifactError("the teacher's answer is no number", where=item.name)
        put("teacher", index, row.reshape(-1)[0] if row.size == 1 else row, np.float32)
        if canvas is not None:
            pixels = seen if canvas.spec == teacher.spec else canvas.pixels(item.image)
            put("canvases", index, pixels[0].permute(1, 2, 0).numpy(), np.uint8)
        put("labels", index, np.nan if item.label is None else item.label,
            np.int64 if isinstance(item.label, int) else np.float64)
        put("groups", index, item.group, np.int64)
        if (index + 1) % _SAVED_EVERY == 0:
            for array in arrays.values():
                array.flush()
            state.write_text(json.dumps(index + 1))
    for array in arrays.values():
        array.flush()
    state.unlink(missing_ok=True)
    progress(what, count, count)


def answers_of(network: Network, spec: InputSpec) -> Callable[[torch.Tensor], torch.Tensor]:
    """A built network as `prepare` and the gate ask it: uint8 pixels [1, 3, S, S] → outputs [1, …]."""
    preprocess = Preprocess(spec)
    if network.pixels is not None:
        return network.pixels
    return lambda pixels: network.floats(preprocess.normalise(pixels))
