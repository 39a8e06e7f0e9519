"""What the archives of a model store say of themselves, read without torch: the other half of a plan."""

from __future__ import annotations

import json
import zipfile
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


def read_archive(path: Path) -> ServedModel:
    """Reads artifact.json from a .mar, and NAME.measured.json beside it if there is one.

    Raises:
        SettingsError: not an archive, truncated, or not built by this toolkit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
            artifact = json.loads(archive.read("artifact.json"))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise SettingsError("this archive cannot be served", where=str(path), why=str(error).strip("'\""),
                            remedy="build it with `tscpu build`") from error
    measured = _measured(path)
    return ServedModel(
        name=manifest["modelName"], version=manifest["modelVersion"], archive=path.name, runtime=artifact["runtime"],
        batch_size=artifact["batch_size"], max_batch_delay_ms=artifact["max_batch_delay_ms"],
        resident_bytes=int(measured.get("resident_bytes", DEFAULT_RESIDENT_BYTES)),
        load_seconds=float(measured.get("load_seconds", DEFAULT_LOAD_SECONDS)),
        inference_ms=float(measured.get("inference_ms", DEFAULT_INFERENCE_MS)), measured=bool(measured))


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


def _measured(path: Path) -> dict[str, Any]:
    sidecar = path.with_name(f"{path.stem}.measured.json")
    try:
        data: dict[str, Any] = json.loads(sidecar.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError("cannot read what was measured of an archive", where=str(sidecar), why=str(error),
                            remedy="build it again, or remove the file") from error
    return data
