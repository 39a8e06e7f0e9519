"""Network (+ head) → an artifact: the network's file for each runtime, checked against the eager reference, and
artifact.json.

How a file is written lives in `formats`, how it is judged in `parity`; packing into an archive in `archive`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from handlers.artifact import AUTO, Artifact, NetworkFile
from handlers.errors import ArtifactError
from handlers.runtimes import RUNTIMES, Runtime, open_runtime
from handlers.svr import SVRHead
from handlers.transforms import Preprocess
from models.formats import write
from models.networks import load_network, load_torchscript
from models.own_code import import_file
from models.parity import beyond, compare, reference
from models.samples import calibration, held_out
from models.spec import BUILTIN_HANDLERS, ModelSpec, read_spec

Progress = Callable[[str, int, int], None]


class Headed(nn.Module):
    """Backbone and head as one graph: float32 [N, 3, S, S] → scores [N]."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.head(self.backbone(x)))


def build(folder: Path, out: Path, cache: Path, progress: Progress, runtime: str | None = None,
          batch_size: int | None = None) -> Artifact:
    """Builds the model of a folder into `out`/NAME; nothing is left there unless all of it succeeded.

    Args:
        folder: holds model.yaml.
        cache: for what is expensive and depends on inputs only (features of the training crops).
        progress: called with (what, done, total).
        runtime, batch_size: the user's word against model.yaml's. "auto" builds for every runtime that can be had
            here, and leaves out those beyond tolerance.

    Raises:
        ArtifactError: anything that would make the archive fail later.
    """
    spec = read_spec(folder)
    runtime = runtime or spec.runtime
    if runtime not in RUNTIMES and runtime != AUTO:
        raise ArtifactError(f"there is no runtime {runtime!r}", where=spec.name,
                            remedy=f"one of {', '.join(RUNTIMES)}, or {AUTO}")
    own_handler = handler_file(spec, folder)  # before a training that may take minutes
    network, record = _network(spec, folder, cache, progress)
    labels, groups = read_labels(folder / spec.labels) if spec.labels else ((), {})
    artifact = Artifact(
        name=spec.name, version=spec.version, runtime=runtime, files={}, input=spec.input.resolved(),
        batch_size=batch_size or spec.batch.size, max_batch_delay_ms=spec.batch.max_delay_ms,
        handler=spec.handler, labels=labels, groups=groups, top_k=spec.output.top_k, record=record)
    example = _example(artifact, 2)
    with torch.inference_mode():
        try:
            outputs = network(example)
        except RuntimeError as error:
            raise ArtifactError("the network does not accept its input", where="model.yaml: input.size",
                                why=f"float32 {list(example.shape)}: {str(error).strip().splitlines()[-1]}") from error
    _check_outputs(spec, artifact, outputs)

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as name:
        work = Path(name)
        files, parity = _files(network, spec, artifact, folder, work, progress)
        artifact = replace(artifact, files=files, versions=_versions(files), record={**record, "parity": parity})
        artifact.write(work)
        if own_handler is not None:
            shutil.copy(own_handler, work)
        put(work, out / spec.name)
        work.mkdir()  # for TemporaryDirectory to remove
    return artifact


def _files(network: nn.Module, spec: ModelSpec, artifact: Artifact, folder: Path, work: Path,
           progress: Progress) -> tuple[dict[str, NetworkFile], dict[str, Any]]:
    """The network's files for the runtime that is wanted, or for all that can be had, and their parity records.

    Raises:
        ArtifactError: the wanted runtime's file cannot be written, or is beyond tolerance; none is left of all.
    """
    every = artifact.runtime == AUTO
    names = [name for name, runtime in RUNTIMES.items() if not every or _available(runtime, spec)]
    names = names if every else [artifact.runtime]
    preprocess = Preprocess(artifact.input)
    progress("the reference's answers", 0, 1)
    expected = reference(network, preprocess, held_out(spec, folder), artifact.batch_size)
    progress("the reference's answers", 1, 1)
    files: dict[str, NetworkFile] = {}
    records: dict[str, Any] = {}

    def samples() -> list[torch.Tensor]:
        return [preprocess([sample.image]) for sample in calibration(spec, folder)]

    for name in names:
        runtime, what = RUNTIMES[name], f"building for {name}"
        progress(what, 0, 1)
        others = set(work.iterdir())
        try:
            file = write(runtime.format, network, _example(artifact, 2), samples, work)
            built = open_runtime(name, work / file, torch.get_num_threads(), artifact.input)
            record = compare(built, expected, preprocess, artifact.groups)
            faults = beyond(record, spec.tolerance, quantized="int8" in name)
        except ArtifactError as error:
            if not every:
                raise
            records[name] = {"refused": [" ".join(str(error).split())]}
            _discard(set(work.iterdir()) - others)
            progress(what, 1, 1)
            continue
        if faults and not every:
            raise ArtifactError(f"the network built for {name} differs too much from the one it was made of",
                                where=artifact.name, why="; ".join(faults),
                                remedy="build for another runtime, or set model.yaml: tolerance to what you can accept")
        records[name] = {**record, "refused": faults} if faults else record
        if faults:
            _discard(set(work.iterdir()) - others)
        else:
            files[name] = NetworkFile(file, runtime.package, runtime.cpu_flag)
        progress(what, 1, 1)
    if not files:
        raise ArtifactError("no runtime is within tolerance", where=artifact.name,
                            why="; ".join(f"{name}: {', '.join(each['refused'])}" for name, each in records.items()))
    return files, {"reference": "eager fp32", "tolerance": spec.tolerance.model_dump(), "runtimes": records}


def _discard(paths: set[Path]) -> None:
    """Removes what was written for a runtime that is left out: all that stays is packed into the archive."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _available(runtime: Runtime, spec: ModelSpec) -> bool:
    """Whether `auto` can build for a runtime here: what it runs with is installed, and what writes its file."""
    packages = [runtime.package, *({"onnx": ["onnx"], "onnx-int8": ["onnx"],
                                    "openvino-int8": ["nncf"]}.get(runtime.format, []))]
    return all(importlib.util.find_spec(package) is not None for package in packages if package)


def handler_class(spec: ModelSpec) -> tuple[str, str]:
    """The module and class of a spec's handler, as the archive imports them."""
    if spec.handler in BUILTIN_HANDLERS:
        return BUILTIN_HANDLERS[spec.handler]
    file, name = spec.handler.split(":")
    return Path(file).stem, name


def put(work: Path, target: Path) -> None:
    """Moves a finished folder into place, where another process may be doing the same."""
    while True:
        with (tempfile.TemporaryDirectory(dir=target.parent, prefix=".replaced-") as aside,
              contextlib.suppress(FileNotFoundError)):
            target.rename(Path(aside) / target.name)
        try:
            work.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return


def handler_file(spec: ModelSpec, folder: Path) -> Path | None:
    """The file of a handler of the user's own, or None."""
    if spec.handler in BUILTIN_HANDLERS:
        return None
    path = folder / spec.handler.split(":")[0]
    if not path.is_file():
        raise ArtifactError("the handler is not there", where=f"{folder / 'model.yaml'}: handler: {spec.handler}")
    return path


def read_labels(path: Path) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Labels and groups from a JSON list, or an object with "labels" and lists of indices by the group's name.

    Raises:
        ArtifactError: another form, or a group's index beyond the labels.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ArtifactError("cannot read the labels", where=str(path), why=str(error)) from error
    labels = data if isinstance(data, list) else data.get("labels") if isinstance(data, dict) else None
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise ArtifactError("the labels are expected as a JSON list of texts, or under \"labels\"", where=str(path))
    groups = {} if isinstance(data, list) else {
        name: tuple(members) for name, members in data.items() if name != "labels" and isinstance(members, list)}
    for name, members in groups.items():
        bad = [member for member in members if not isinstance(member, int) or not 0 <= member < len(labels)]
        if bad or not members:
            raise ArtifactError(f"the group {name!r} is wrong", where=str(path),
                                why=f"{bad[0]!r} is no index of {len(labels)} labels" if bad else "it is empty")
    return tuple(labels), groups


def _network(spec: ModelSpec, folder: Path, cache: Path, progress: Progress) -> tuple[nn.Module, dict[str, Any]]:
    section = spec.network
    if section.file is not None:
        network: nn.Module = load_torchscript(folder / section.file)
    else:
        network = load_network(cast(str, section.architecture), cast(str, section.weights), section.weights_by,
                               section.classes, section.features, folder, section.stages)
    if spec.head is None:
        return network, {}
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if spec.head.file is not None:
        return Headed(network, SVRHead.load(folder / spec.head.file)).eval(), {}
    head, record = _trainer(folder / cast(Path, spec.head.train))(
        network, Preprocess(spec.input.resolved()), cache / spec.name, progress)
    return Headed(network, head).eval(), {"head": record}


def _trainer(path: Path) -> Callable[..., tuple[SVRHead, dict[str, Any]]]:
    if not path.is_file():
        raise ArtifactError("the head's training is not there", where=f"head.train: {path}")
    module = import_file(path, f"models._{path.stem}_of_{path.parent.name}")
    if not hasattr(module, "fit"):
        raise ArtifactError("the head's training has no fit(network, preprocess, cache, progress)", where=str(path))
    return cast(Callable[..., tuple[SVRHead, dict[str, Any]]], module.fit)


def _example(artifact: Artifact, count: int) -> torch.Tensor:
    size = artifact.input.size
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)


def _check_outputs(spec: ModelSpec, artifact: Artifact, outputs: Any) -> None:
    where = "model.yaml"
    if not isinstance(outputs, torch.Tensor) or outputs.dim() == 0 or outputs.shape[0] != 2:
        raise ArtifactError("the network must give one tensor with a row for each image", where=where,
                            why=f"for a batch of 2 it gives {getattr(outputs, 'shape', type(outputs))}")
    if spec.handler == "image_scorer":
        if outputs.numel() != 2:
            raise ArtifactError("a scorer's network gives one number an image", where=f"{where}: head",
                                why=f"it gives {list(outputs.shape)} for a batch of 2",
                                remedy="add a head, or use handler: classifier")
        return
    if ".py:" in spec.handler:
        return
    classes = outputs.shape[1] if outputs.dim() == 2 else 0
    if len(artifact.labels) != classes:
        raise ArtifactError("the labels do not fit the network", where=f"{where}: labels",
                            why=f"{len(artifact.labels)} labels for outputs {list(outputs.shape)} of a batch of 2")
    if artifact.top_k > classes:
        raise ArtifactError("top_k is larger than the number of classes", where=f"{where}: output.top_k",
                            why=f"{artifact.top_k} of {classes}")
    if spec.handler == "food_recognizer" and "food" not in artifact.groups:
        raise ArtifactError('a food recognizer needs to know which labels are food', where=f"{where}: labels",
                            remedy='add "food": [indices] to the labels file, or use handler: classifier')


def _versions(files: dict[str, NetworkFile]) -> dict[str, str]:
    """Of the packages that wrote the files and open them."""
    names = {"torch": "torch", **{each.package: each.package.replace("_", "-") for each in files.values()
                                  if each.package}}
    versions = {name: importlib.metadata.version(name) for name in names.values()}
    return {"python": platform.python_version(), **versions}
