"""What the archives of a model store say of themselves, read without torch: the other half of a plan."""

from __future__ import annotations

import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import SettingsError

# For an archive without its .measured.json: a ResNet-50 sized model with IPEX, on a slow day.
DEFAULT_RESIDENT_BYTES = 1_200_000_000
DEFAULT_LOAD_SECONDS = 40.0
DEFAULT_INFERENCE_MS = 100.0


@dataclass(frozen=True)
class Built:
    """One runtime that an archive was built for.

    Attributes:
        package: what the worker must be able to import; empty for none.
        cpu_flag: the instruction set that it cannot do without, as /proc/cpuinfo calls it; empty for none.
        resident_bytes, load_seconds, inference_ms: measured when the archive was built, else assumed.
    """

    runtime: str
    package: str = ""
    cpu_flag: str = ""
    resident_bytes: int = DEFAULT_RESIDENT_BYTES
    load_seconds: float = DEFAULT_LOAD_SECONDS
    inference_ms: float = DEFAULT_INFERENCE_MS
    measured: bool = False


@dataclass(frozen=True)
class ServedModel:
    """One archive, as planning needs to know it.

    Attributes:
        runtime: the one that was asked for when it was built, or "auto".
        built: every runtime that it can be served with.
        resident_bytes, load_seconds, inference_ms: of `runtime`.
    """

    name: str
    version: str
    archive: str
    runtime: str
    batch_size: int
    max_batch_delay_ms: int
    resident_bytes: int = DEFAULT_RESIDENT_BYTES
    load_seconds: float = DEFAULT_LOAD_SECONDS
    inference_ms: float = DEFAULT_INFERENCE_MS
    measured: bool = False
    built: tuple[Built, ...] = ()

    def served_by(self, built: Built) -> ServedModel:
        """The same archive with one of its runtimes chosen."""
        return replace(self, runtime=built.runtime, resident_bytes=built.resident_bytes,
                       load_seconds=built.load_seconds, inference_ms=built.inference_ms, measured=built.measured)


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
    measured = _measured(path)
    with _contents(path) as archive:
        artifact = json.loads(archive.read("artifact.json"))
        runtime, batch_size = str(artifact["runtime"]), int(artifact["batch_size"])
        delay = int(artifact["max_batch_delay_ms"])
        built = tuple(
            Built(runtime=name, package=str(each["package"]), cpu_flag=str(each["cpu_flag"]),
                  **measured.get(name, {}), measured=name in measured)
            for name, each in sorted(artifact["files"].items()))
        if runtime != "auto" and runtime not in {each.runtime for each in built}:
            raise ValueError(f"it has no file for its own runtime {runtime!r}")
    model = ServedModel(name=name, version=version, archive=path.name, runtime=runtime, batch_size=batch_size,
                        max_batch_delay_ms=delay, built=built)
    chosen = next((each for each in built if each.runtime == runtime), None)
    return model if chosen is None else model.served_by(chosen)


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
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, KeyError, TypeError,
            ValueError) as error:
        missing = isinstance(error, KeyError) and "archive" not in str(error)
        why = f"it does not say {error}" if missing else str(error.args[0] if isinstance(error, KeyError) else error)
        raise SettingsError("this archive cannot be served", where=str(path), why=why,
                            remedy="build it with `tscpu build`") from error


def _measured(path: Path) -> dict[str, dict[str, Any]]:
    """What was measured of each runtime of an archive; nothing without the file."""
    sidecar = path.with_name(f"{path.stem}.measured.json")
    names = ("resident_bytes", "load_seconds", "inference_ms")
    found: dict[str, dict[str, Any]] = {}
    try:
        data: Any = json.loads(sidecar.read_text(encoding="utf-8"))
        for runtime, costs in data.items():
            values = {name: float(costs[name]) for name in names}
            if not all(0 < value < math.inf for value in values.values()):
                raise ValueError(f"found {values}, where all must be above zero")
            found[runtime] = {**values, "resident_bytes": int(values["resident_bytes"])}
    except FileNotFoundError:
        return {}
    except (AttributeError, OSError, KeyError, TypeError, ValueError) as error:
        raise SettingsError("cannot read what was measured of an archive", where=str(sidecar), why=str(error),
                            remedy="build it again, or remove the file") from error
    return found
