"""What the archives of a model store say of themselves, read without torch: the other half of a plan."""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import SettingsError

# For an archive without its .measured.json: a ResNet-50 sized model with IPEX, on a slow day.
DEFAULT_RESIDENT_BYTES = 1_200_000_000
DEFAULT_LOAD_SECONDS = 40.0
DEFAULT_INFERENCE_MS = 100.0


@dataclass(frozen=True)
class ServedModel:
    """One archive, as planning needs to know it.

    Attributes:
        resident_bytes, load_seconds, inference_ms: measured when the archive was built, else assumed.
    """

    name: str
    version: str
    archive: str
    runtime: str
    batch_size: int
    max_batch_delay_ms: int
    resident_bytes: int
    load_seconds: float
    inference_ms: float
    measured: bool


def read_manifest(path: Path) -> tuple[str, str]:
    """Name and version of the model in any .mar, whoever built it.

    Raises:
        SettingsError: not an archive, or truncated.
    """
    with _contents(path) as archive:
        model = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
        name, version = str(model["modelName"]), str(model["modelVersion"])
    for field, text in (("modelName", name), ("modelVersion", version), ("file name", path.name)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text):
            raise SettingsError("this archive cannot be served", where=str(path), why=f"{field} {text!r}: TorchServe's "
                                "configuration takes letters, digits, _, . and - only", remedy="build it with another")
    return name, version


def read_archive(path: Path) -> ServedModel:
    """Reads artifact.json from a .mar, and NAME.measured.json beside it if there is one.

    Raises:
        SettingsError: not an archive, truncated, or not built by this toolkit.
    """
    name, version = read_manifest(path)
    if path.stem != name:
        raise SettingsError(f"this archive holds the model {name!r}", where=str(path),
                            why="archives are found by the names of their models", remedy=f"call it {name}.mar")
    with _contents(path) as archive:
        artifact = json.loads(archive.read("artifact.json"))
        runtime, batch_size = str(artifact["runtime"]), int(artifact["batch_size"])
        delay = int(artifact["max_batch_delay_ms"])
    measured = _measured(path)
    return ServedModel(
        name=name, version=version, archive=path.name, runtime=runtime, batch_size=batch_size, max_batch_delay_ms=delay,
        resident_bytes=int(measured.get("resident_bytes", DEFAULT_RESIDENT_BYTES)),
        load_seconds=measured.get("load_seconds", DEFAULT_LOAD_SECONDS),
        inference_ms=measured.get("inference_ms", DEFAULT_INFERENCE_MS), measured=bool(measured))


def read_model_store(folder: Path, wanted: list[str]) -> list[ServedModel]:
    """The archives to be served, by name; `wanted` empty means all.

    Raises:
        SettingsError: the folder or an archive is missing.
    """
    names = sorted(path.stem for path in folder.glob("*.mar")) if folder.is_dir() else []
    if not names:
        raise SettingsError("there is no archive to serve", where=str(folder), remedy="build one: `tscpu build`")
    for name in wanted:
        if name not in names:
            raise SettingsError(f"the serving file asks for {name!r}, which is not there", where=str(folder),
                                why="it holds " + ", ".join(names), remedy=f"build it: `tscpu build {name}`")
    return [read_archive(folder / f"{name}.mar") for name in (wanted or names)]


@contextmanager
def _contents(path: Path) -> Iterator[zipfile.ZipFile]:
    """The opened archive; what goes wrong within becomes a message."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, TypeError, ValueError) as error:
        missing = isinstance(error, KeyError) and "archive" not in str(error)
        why = f"it does not say {error}" if missing else str(error).strip("'\"")
        raise SettingsError("this archive cannot be served", where=str(path), why=why,
                            remedy="build it with `tscpu build`") from error


def _measured(path: Path) -> dict[str, float]:
    """What was measured of an archive; nothing without the file."""
    sidecar = path.with_name(f"{path.stem}.measured.json")
    names = ("resident_bytes", "load_seconds", "inference_ms")
    try:
        data: Any = json.loads(sidecar.read_text(encoding="utf-8"))
        found = {name: float(data[name]) for name in names}
        if not all(0 < value < math.inf for value in found.values()):
            raise ValueError(f"found {found}, where all must be above zero")
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SettingsError("cannot read what was measured of an archive", where=str(sidecar), why=str(error),
                            remedy="build it again, or remove the file") from error
    return found
