"""Network (+ head) → an artifact: one TorchScript graph and its artifact.json, checked against the eager reference.

Packing it into an archive is `archive`'s business.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import importlib.util
import io
import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from handlers.artifact import Artifact
from handlers.errors import ArtifactError
from handlers.runtimes import import_ipex, open_runtime
from handlers.svr import SVRHead
from handlers.transforms import Preprocess
from models.networks import load_network, load_torchscript
from models.spec import BUILTIN_HANDLERS, ModelSpec, read_spec

Progress = Callable[[str, int, int], None]
GRAPH = "model.pt"
TOLERANCE = 1e-4
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold


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
        runtime, batch_size: the user's word against model.yaml's.

    Raises:
        ArtifactError: anything that would make the archive fail later.
    """
    spec = read_spec(folder)
    runtime = runtime or spec.runtime
    handler_file = _handler_file(spec, folder)  # before a training that may take minutes
    network, record = _network(spec, folder, cache, progress)
    labels, groups = read_labels(folder / spec.labels) if spec.labels else ((), {})
    artifact = Artifact(
        name=spec.name, version=spec.version, runtime=runtime, file=GRAPH, input=spec.input.resolved(),
        batch_size=batch_size or spec.batch.size, max_batch_delay_ms=spec.batch.max_delay_ms,
        handler=spec.handler, labels=labels, groups=groups, top_k=spec.output.top_k,
        versions=_versions(runtime), record=record)
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
        progress("tracing the network", 0, 1)
        (work / GRAPH).write_bytes(trace(network, example, runtime))
        artifact = replace(artifact, record={**record, "parity": _parity(network, artifact, work)})
        artifact.write(work)
        if handler_file is not None:
            shutil.copy(handler_file, work)
        _put(work, out / spec.name)
        work.mkdir()  # for TemporaryDirectory to remove
        progress("tracing the network", 1, 1)
    return artifact


def handler_class(spec: ModelSpec) -> tuple[str, str]:
    """The module and class of a spec's handler, as the archive imports them."""
    if spec.handler in BUILTIN_HANDLERS:
        return BUILTIN_HANDLERS[spec.handler]
    file, name = spec.handler.split(":")
    return Path(file).stem, name


def _put(work: Path, target: Path) -> None:
    """Moves a finished build into place, where another build of the same model may be doing the same."""
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


def _handler_file(spec: ModelSpec, folder: Path) -> Path | None:
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


def trace(network: nn.Module, example: torch.Tensor, runtime: str) -> bytes:
    """The network as TorchScript bytes, the same for the same network.

    For ipex the module first goes through ipex.optimize without prepacking: its weights stay in a layout that suits
    every shape, and freezing the graph in the worker packs them for the real one.
    """
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        if runtime == "ipex" and not isinstance(network, torch.jit.ScriptModule):
            import_ipex()
            import intel_extension_for_pytorch as ipex

            network = ipex.optimize(network, weights_prepack=False)
        graph = network if isinstance(network, torch.jit.ScriptModule) else torch.jit.trace(network, example)  # type: ignore[no-untyped-call]
        buffer = io.BytesIO()
        torch.jit.save(graph, buffer)  # type: ignore[no-untyped-call]
    return _without_debug_records(buffer.getvalue())


def _without_debug_records(data: bytes) -> bytes:
    """TorchScript's zip without its debug records, which hold paths of the machine that built it, and undated."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for entry in sorted(source.infolist(), key=lambda entry: entry.filename):
            if not entry.filename.endswith((".debug_pkl", "serialization_id")):
                target.writestr(zipfile.ZipInfo(entry.filename, _EPOCH), source.read(entry))
    return out.getvalue()


def _network(spec: ModelSpec, folder: Path, cache: Path, progress: Progress) -> tuple[nn.Module, dict[str, Any]]:
    section = spec.network
    if section.file is not None:
        network: nn.Module = load_torchscript(folder / section.file)
    else:
        network = load_network(cast(str, section.architecture), cast(str, section.weights), section.weights_by,
                               section.classes, section.features, folder)
    if spec.head is None:
        return network, {}
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if spec.head.file is not None:
        return Headed(network, SVRHead.load(folder / spec.head.file)).eval(), {}
    head, record = _trainer(folder / cast(Path, spec.head.train))(
        network, Preprocess(spec.input.resolved()), cache / spec.name, progress)
    return Headed(network, head).eval(), {"head": record}


def _trainer(path: Path) -> Callable[..., tuple[SVRHead, dict[str, Any]]]:
    loader = importlib.util.spec_from_file_location(f"models._{path.stem}_of_{path.parent.name}", path)
    if not path.is_file() or loader is None or loader.loader is None:
        raise ArtifactError("the head's training is not there", where=f"head.train: {path}")
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
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


def _parity(network: nn.Module, artifact: Artifact, work: Path) -> dict[str, Any]:
    """The built graph against the eager network, on batches of 1, 2 and batch_size.

    Raises:
        ArtifactError: further apart than TOLERANCE of the largest output.
    """
    built = open_runtime(artifact.runtime, work / artifact.file, torch.get_num_threads())
    for count in sorted({1, 2, artifact.batch_size}):
        batch = _example(artifact, count)
        with torch.inference_mode():
            expected, found = network(batch), built(batch)
        if found.shape != expected.shape:
            raise ArtifactError("the built graph answers in another shape", where=artifact.name,
                                why=f"{list(found.shape)}, and {list(expected.shape)} is expected")
        scale = float(expected.abs().max().clamp(min=1e-6))
        apart = float((found - expected).abs().max()) / scale
        if not apart <= TOLERANCE:  # neither is NaN
            raise ArtifactError("the built graph differs from the network it was made of", where=artifact.name,
                                why=f"by {apart:.1e} of the largest output; {TOLERANCE:.0e} is allowed",
                                remedy="build with --runtime eager, and tell us")
    return {"reference": "eager fp32", "tolerance": TOLERANCE, "within_tolerance": True}


def _versions(runtime: str) -> dict[str, str]:
    names = ["torch", *(["intel-extension-for-pytorch"] if runtime == "ipex" else [])]
    return {name: importlib.metadata.version(name) for name in names}
