"""The run's own model stores, built when what they depend on has changed: an archive of each model and student with
every runtime, and those of the baselines.

They lie beside the user's: a comparison of five runtimes must not replace the archive that is to be served.
"""

from __future__ import annotations

import json
import platform
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from configs.errors import ServerError
from measure import child
from measure.folders import files_digest, model_folder
from measure.machine import versions
from measure.setups import Setup

ROOT = Path(__file__).resolve().parents[1]
NOOP = "noop"
_NOOP_SOURCE = '''"""Answers at once: what is left of a request is TorchServe and its protocol."""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from handlers import placement  # noqa: E402


class Noop:
    def initialize(self, context):
        placement.take_place(context.model_name)
        # as quiet as the real handlers are after they have loaded
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("ts.metrics").setLevel(logging.WARNING)

    def handle(self, data, context):
        for index in range(len(data)):
            context.set_response_content_type(index, "application/json")
        return [b"{}"] * len(data)
'''


class Store:
    """The archives of a run, below one folder.

    Args:
        work: for archives, unpacked copies and stamps.
        cache: what training the scorer's head keeps, shared with `tscpu build`.
    """

    def __init__(self, work: Path, cache: Path) -> None:
        self.work, self.cache = work, cache

    def folder(self, setup: Setup) -> Path:
        """The model store that a setup's server is given."""
        if setup.kind == "stock":
            return self.work / "store" / f"stock-{_stock_form(setup)}"
        return self.work / "store" / (_built_for(setup.runtime) if setup.runtime else NOOP)

    def unpacked(self, model: str, runtime: str) -> Path:
        """An archive of ours as a folder, for processes that are no TorchServe worker."""
        return self.work / "unpacked" / f"{_built_for(runtime)}-{model}"

    def build(self, setup: Setup) -> None:
        """Makes sure that a setup's archive is there and up to date.

        Raises:
            ServerError: it cannot be built, with the builder's own words.
        """
        if setup.kind == "stock":
            self._stock(setup)
        elif setup.kind == "noop":
            self._noop()
        else:
            self.ours(setup.model, setup.runtime)

    def ours(self, model: str, runtime: str) -> Path:
        """The archive of a model, which has this runtime among others; returns it unpacked.

        Raises:
            ServerError: it cannot be built, or this runtime was left out of it as beyond tolerance.
        """
        built_for = _built_for(runtime)
        store, unpacked = self.work / "store" / built_for, self.unpacked(model, runtime)
        folder, built = model_folder(model), store / f"{model}.mar"

        def make() -> None:
            built.unlink(missing_ok=True)
            _run("model", folder, built_for, self.work / "artifacts" / built_for, self.cache, store)
            if not built.is_file():
                raise ServerError("the model in a folder has another name than the folder", where=str(folder),
                                  remedy=f"rename the folder, or say name: {model} in its model.yaml")
            shutil.rmtree(unpacked, ignore_errors=True)
            with zipfile.ZipFile(built) as archive:
                archive.extractall(unpacked)

        sources = [*(ROOT / "handlers").glob("*.py"), *(ROOT / "models").glob("*.py"), *folder.glob("*.*")]
        self._fresh(f"{built_for}-{model}", built, sources, make)
        artifact = json.loads((unpacked / "artifact.json").read_text())
        if runtime not in artifact["files"]:
            record = artifact["record"]["parity"]["runtimes"].get(runtime, {})
            raise ServerError(f"{model} was not built for {runtime}",
                              why="; ".join(record.get("refused", ["its packages are not installed"])))
        return unpacked

    def _stock(self, setup: Setup) -> None:
        store, folder = self.folder(setup), model_folder(setup.model)
        sources = [ROOT / "models" / "networks.py", ROOT / "measure" / "building.py", *folder.glob("*.*")]
        self._fresh(store.name, store / "stock.mar", sources,
                    lambda: _run("stock", _stock_form(setup), folder, store))

    def _noop(self) -> None:
        archive = self.work / "store" / NOOP / f"{NOOP}.mar"
        sources = [*(ROOT / "handlers").glob("*.py"), Path(__file__)]
        self._fresh(NOOP, archive, sources, lambda: write_noop(archive))

    def _fresh(self, name: str, result: Path, sources: Iterable[Path], make: Callable[[], None]) -> None:
        digest = files_digest(json.dumps([versions(), platform.python_version()]), sources)
        stamp = self.work / "stamps" / name
        if result.is_file() and stamp.is_file() and stamp.read_text() == digest:
            return
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        make()
        stamp.write_text(digest)


def write_noop(archive: Path) -> None:
    """An archive that our plan and configuration accept, around a handler that does nothing."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    manifest = {"runtime": "python", "archiverVersion": "0.12.0",
                "model": {"modelName": NOOP, "modelVersion": "1.0", "handler": "service.py"}}
    artifact = {"runtime": "eager", "batch_size": 1, "max_batch_delay_ms": 1,
                "files": {"eager": {"file": "service.py", "package": "", "cpu_flag": ""}}}
    measured = {"eager": {"resident_bytes": 500_000_000, "load_seconds": 10.0, "inference_ms": 1.0}}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        out.writestr("artifact.json", json.dumps(artifact))
        out.writestr("service.py", _NOOP_SOURCE)
        for path in sorted((ROOT / "handlers").glob("*.py")):
            out.write(path, f"handlers/{path.name}")
    archive.with_name(f"{archive.stem}.measured.json").write_text(json.dumps(measured))


def _built_for(runtime: str) -> str:
    """What an archive with this runtime is built for: one with all of them serves every setup but eager's own."""
    return "eager" if runtime == "eager" else "auto"


def _stock_form(setup: Setup) -> str:
    return "eager" if setup.name in ("intel", "stock/eager") else "torchscript"


def _run(*arguments: str | Path) -> None:
    child.run("measure.building", *arguments, what="an archive cannot be built",
              where=" ".join(map(str, arguments[1:3])))
