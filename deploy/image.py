"""The image: built by whichever engine is there, and its size by layer."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from configs.errors import SettingsError
from deploy.engines import Engine

IMAGE = "torchserve-cpu-toolkit:0.1.0"
# what a layer's command names → what the layer is; the first that fits
_LAYERS = (("/opt/venv", "Python packages"), ("openjdk", "Java, Python, tini, numactl"), ("/models", "archives"),
           ("/app", "the toolkit"), ("serving.yaml", "serving.yaml"))


@dataclass(frozen=True)
class Layer:
    """A layer that is not empty: what it is, and its size in bytes."""

    what: str
    size: int


def build(engine: Engine, root: Path, image: str, arguments: dict[str, str], options: list[str]) -> None:
    """Builds the image from the Dockerfile, showing what the engine says.

    Args:
        root: the repository.
        arguments: build arguments.
        options: more options for the engine's build command, as they are.

    Raises:
        SettingsError: no archive is there to be baked in.
        ServerError: the engine failed.
    """
    if not list((root / "build" / "model-store").glob("*.mar")):
        raise SettingsError("there is no archive to put into the image", where=str(root / "build" / "model-store"),
                            remedy="build one: `tscpu build food_recognizer image_scorer`")
    # the other format has no HEALTHCHECK
    command = [] if engine.name == "docker" else ["--format", "docker", "--layers"]
    for name, value in {"REVISION": _revision(root), **arguments}.items():
        command += ["--build-arg", f"{name}={value}"]
    engine.run("build", *command, *options, "--tag", image, "--file", str(root / "Dockerfile"), str(root),
               capture=False)


def layers(engine: Engine, image: str) -> list[Layer]:
    """The layers of an image, the base first; empty where the engine does not tell."""
    if engine.name == "buildah":
        return []
    if engine.name == "docker":
        lines = engine.run("history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image)
        pairs = [line.partition("\t")[::2] for line in lines.splitlines()]
        rows = [(int(size), command) for size, command in pairs]
    else:
        rows = [(int(row["size"]), str(row.get("CreatedBy", row.get("createdBy", ""))))
                for row in json.loads(engine.run("history", "--format", "json", image))]
    found: dict[str, int] = {}
    for size, command in reversed(rows):
        what = next((name for word, name in _LAYERS if word in command), "Debian")
        found[what] = found.get(what, 0) + size
    return [Layer(what, size) for what, size in found.items() if size]


def size(engine: Engine, image: str) -> int:
    """Bytes of an image, unpacked."""
    if engine.name == "buildah":
        found = json.loads(engine.run("images", "--json", image))
        return _bytes(str(found[0]["size"]))
    return int(engine.run("image", "inspect", "--format", "{{.Size}}", image))


def _bytes(text: str) -> int:
    """"1.2 GB" as buildah writes it."""
    match = re.fullmatch(r"([\d.]+) ?([kMGT]?)B", text)
    return int(float(match[1]) * 1000 ** " kMGT".index(match[2] or " ")) if match else 0


def _revision(root: Path) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True,
                              text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
