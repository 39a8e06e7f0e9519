"""What servers are asked with: the bodies of the load, and those of the checker with what they should be answered.

The load is one photo, china.jpg of scikit-learn: 640×427, 196 653 bytes as its photographer's camera wrote it, so no
encoder setting of ours decides what decoding costs. The checker asks with it and with a second, quite different photo,
so that an answer that belongs to another request is noticed.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models import datasets

LOAD, SECOND = "china", "coffee"
BOUNDARY = "tscpu-3f9a1c"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
WIDTH, HEIGHT, SIZE = 640, 427, 224


@dataclass(frozen=True)
class Body:
    """A request's body in a file, since generators and reference processes read it from there.

    Attributes:
        kind: "jpeg", "tensor" or "form": the JPEG as the one file of a form.
    """

    name: str
    kind: str
    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()

    @property
    def plain(self) -> Path:
        """What a form holds, as a file; of all others the body itself."""
        return self.path.with_suffix(".jpeg") if self.kind == "form" else self.path


def write_bodies(folder: Path) -> tuple[Body, ...]:
    """Writes every kind of body of both photos; of each kind the load's comes first."""
    folder.mkdir(parents=True, exist_ok=True)
    original = datasets.photo_path(LOAD).read_bytes()
    with Image.open(io.BytesIO(original)) as image:
        if image.size != (WIDTH, HEIGHT) or image.format != "JPEG":
            original = _jpeg(datasets.load_photo(LOAD), 96)  # another release of scikit-learn
    jpegs = {LOAD: original, SECOND: _jpeg(datasets.load_photo(SECOND), 92)}
    bodies = []
    for name in (LOAD, SECOND):
        contents = {"jpeg": jpegs[name], "tensor": _tensor(datasets.load_photo(name)), "form": _form(jpegs[name])}
        for kind, content in contents.items():
            path = folder / f"{name}.{kind}"
            path.write_bytes(content)
            bodies.append(Body(name, kind, path))
    return tuple(bodies)


def describe(bodies: tuple[Body, ...]) -> dict[str, Any]:
    """Sizes for the report."""
    sizes = {body.kind: body.path.stat().st_size for body in reversed(bodies) if body.name == LOAD}
    return {"photo": LOAD, "width": WIDTH, "height": HEIGHT, "bytes": sizes}


def _form(jpeg: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="data"; filename="photo.jpg"\r\n' \
           "Content-Type: image/jpeg\r\n\r\n"
    return head.encode() + jpeg + f"\r\n--{BOUNDARY}--\r\n".encode()


def _jpeg(photo: datasets.Image, quality: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(photo).resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def _tensor(photo: datasets.Image) -> bytes:
    """The photo as uint8 [224, 224, 3], as a client that preprocesses itself would send it."""
    height, width = photo.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(photo[top:top + side, left:left + side]).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(square), allow_pickle=False)
    return stream.getvalue()
