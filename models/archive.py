"""Artifact + handlers → .mar, through torch-model-archiver, checked by loading it back.

An archive that TorchServe cannot load would be restarted for ever, so none reaches the model store before a worker's
own loader has read it, in a process of its own, and its handler has answered batches of 1, 2 and its largest size.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import handlers
from handlers.artifact import FILE as ARTIFACT_FILE
from handlers.artifact import Artifact
from handlers.errors import ArtifactError
from models.export import handler_class
from models.spec import ModelSpec

MEASURED_SUFFIX = ".measured.json"
ENTRY = "service.py"
STORED = (".pt", ".onnx", ".bin")
NETWORK_SUFFIXES = (*STORED, ".xml")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ENTRY_SOURCE = '''"""Where TorchServe enters: exactly one class is expected in this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # this archive's own handlers, before any installed ones

from {module} import {name} as _Handler  # noqa: E402


class Service(_Handler):
    pass
'''


@dataclass(frozen=True)
class Measured:
    """What loading an archive back cost, on the machine that built it. Kept beside the archive, not in it, since
    the same inputs must give the same archive.

    Attributes:
        resident_bytes: of a worker after its first answers.
        load_seconds: from starting Python to the first answer.
        inference_ms: median of one image on one pinned thread, decoding left out.
    """

    resident_bytes: int
    load_seconds: float
    inference_ms: float


def package(artifact_dir: Path, spec: ModelSpec, model_store: Path) -> tuple[Path, dict[str, Measured]]:
    """Packs a built artifact into `model_store`/NAME.mar and checks it with each of its runtimes.

    Returns:
        The archive, and by runtime what loading it cost.

    Raises:
        ArtifactError: the archiver failed, or the archive does not answer. The model store is left as it was.
    """
    artifact = Artifact.read(artifact_dir)
    model_store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=model_store) as name:
        work = Path(name)
        stage = work / "stage"
        _stage(artifact_dir, stage)
        entry = work / ENTRY
        module, class_name = handler_class(spec)
        entry.write_text(_ENTRY_SOURCE.format(module=module, name=class_name))
        first = next(iter(artifact.files.values())).file
        for path in artifact_dir.iterdir():
            if path.suffix in NETWORK_SUFFIXES and path.name != first:
                shutil.copy(path, stage / path.name)
        raw = _run_archiver(artifact, entry, stage, artifact_dir / first, work)
        archive = work / f"{artifact.name}.final.mar"
        _normalise(raw, archive)
        measured = {runtime: check(archive, artifact, runtime) for runtime in artifact.files}
        target = model_store / f"{artifact.name}.mar"
        sidecar = model_store / f"{artifact.name}{MEASURED_SUFFIX}"
        (work / "measured.json").write_text(
            json.dumps({runtime: asdict(each) for runtime, each in measured.items()}, indent=1) + "\n")
        (work / "measured.json").replace(sidecar)
        archive.replace(target)
    return target, measured


def _stage(artifact_dir: Path, stage: Path) -> None:
    """Everything but the network and the entry, with relative paths as the archive will have them.

    torch-model-archiver flattens single files by their base name, but keeps what is below a folder.
    """
    source = Path(handlers.__file__).parent
    shutil.copytree(source, stage / "handlers", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for path in artifact_dir.iterdir():
        if path.suffix == ".py" or path.name == ARTIFACT_FILE:
            if path.name == ENTRY:
                raise ArtifactError(f"{ENTRY} is the archive's own entry", where=str(path), remedy="rename the handler")
            shutil.copy(path, stage / path.name)


def _run_archiver(artifact: Artifact, entry: Path, stage: Path, network: Path, work: Path) -> Path:
    scratch = work / "tmp"  # the archiver works in TMPDIR/NAME, where two builds side by side would meet
    scratch.mkdir()
    command = [sys.executable, "-c", "from model_archiver.model_packaging import generate_model_archive as run; run()",
               "--model-name", artifact.name, "--version", artifact.version, "--handler", str(entry),
               "--serialized-file", str(network), "--extra-files", str(stage), "--export-path", str(work), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(scratch)},
                          check=False)
    result = work / f"{artifact.name}.mar"
    if done.returncode != 0 or not result.is_file():
        raise ArtifactError("torch-model-archiver failed", where=artifact.name, why=_last_lines(done.stderr))
    return result


def _normalise(raw: Path, target: Path) -> None:
    """The archive with sorted, undated entries and no date in its manifest: the same inputs give the same bytes."""
    with zipfile.ZipFile(raw) as source, zipfile.ZipFile(target, "w") as out:
        for entry in sorted(source.infolist(), key=lambda entry: entry.filename):
            if entry.is_dir():
                continue
            data = source.read(entry)
            if entry.filename == "MAR-INF/MANIFEST.json":
                manifest = json.loads(data)
                manifest.pop("createdOn", None)
                data = json.dumps(manifest, indent=2, sort_keys=True).encode()
            info = zipfile.ZipInfo(entry.filename, _EPOCH)
            info.external_attr = 0o644 << 16
            # weights hardly shrink, and reading them stored is faster at every pod's start
            info.compress_type = zipfile.ZIP_STORED if entry.filename.endswith(STORED) else zipfile.ZIP_DEFLATED
            out.writestr(info, data)


def check(archive: Path, artifact: Artifact, runtime: str) -> Measured:
    """Loads an archive as a worker does, in a process of its own, with one runtime, on one thread pinned to one CPU,
    and lets it answer batches of 1, 2 and batch_size.

    Raises:
        ArtifactError: with the process's own last words.
    """
    with tempfile.TemporaryDirectory(prefix="tscpu-check-") as name:
        folder, plan = Path(name) / "archive", Path(name) / "plan.json"
        with zipfile.ZipFile(archive) as source:
            source.extractall(folder)
        # as a pod's plan would have it; the last CPU, since the kernel likes to do its own work on the first
        slot = {"cpus": [max(os.sched_getaffinity(0))]}
        plan.write_text(json.dumps({"models": [{"name": artifact.name, "runtime": runtime, "threads": 1,
                                                "slots": [slot]}]}))
        environment = {**os.environ, "TSCPU_PLAN": str(plan), "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1",
                       "PYTHONWARNINGS": "ignore", "MALLOC_TRIM_THRESHOLD_": "1073741824",
                       "MALLOC_MMAP_THRESHOLD_": "1073741824"}
        environment.pop("TS_IPEX_ENABLE", None)
        if runtime == "ipex":
            environment["TS_IPEX_ENABLE"] = "true"
        done = subprocess.run([sys.executable, str(Path(__file__).parent / "archive_check.py"), artifact.name],
                              cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = _last_lines(done.stderr) if done.returncode > 0 else f"the process died of signal {-done.returncode}"
        raise ArtifactError("the archive does not work, and was not put into the model store",
                            where=f"{artifact.name}.mar, runtime {runtime}", why=why)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _last_lines(text: str, count: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-count:])
