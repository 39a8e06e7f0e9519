"""A model.yaml's `network` → a torch module that maps float32 [N, 3, size, size] to outputs or features.

Fitting and heads live elsewhere; nothing here runs in a worker.
"""

from __future__ import annotations

import contextlib
import importlib
import pickletools
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import nn

from handlers.errors import ArtifactError

# what a pickled state dict refers to
_OF_TENSORS = re.compile(r"collections\.OrderedDict|(__builtin__|builtins)\.set|torch\.(\w+Storage|Size)|"
                         r"torch\.(b?float|u?int)\d+|torch\.storage\.\w+|torch\._utils\._rebuild_\w+|torch\.nn\.parameter\.Parameter")


class StageStatistics(nn.Module):
    """Channel means and standard deviations after the stem and after each stage of an EfficientNet-like backbone.

    Pooled features tell what is in a photo and are trained to ignore how good it looks; the statistics of early
    stages carry blur, noise and blocking.

    Output: [N, 2 × sum of the stages' channels], as sign(x)·log(1 + |x|), which tames the channels' heavy tails
    before a StandardScaler.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(cast(nn.Module, backbone.conv_stem), cast(nn.Module, backbone.bn1))
        self.stages = nn.ModuleList(cast(Iterable[nn.Module], backbone.blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        statistics = [_statistics(x)]
        for stage in self.stages:
            x = stage(x)
            statistics.append(_statistics(x))
        features = torch.cat(statistics, dim=1)
        return torch.sign(features) * torch.log1p(torch.abs(features))


def _statistics(x: torch.Tensor) -> torch.Tensor:
    """[N, C, H, W] → [N, 2C]. sqrt(E[x²] − E[x]²) costs a third of torch's std on a CPU; the clamp is for rounding."""
    mean = x.mean((2, 3))
    variance = (x * x).mean((2, 3)) - mean * mean
    return torch.cat([mean, variance.clamp(min=0.0).add(1e-8).sqrt()], dim=1)


def load_network(architecture: str, weights: str, weights_by: str, classes: int, features: str,
                 folder: Path) -> nn.Module:
    """A timm architecture with its weights, in eval mode.

    Args:
        weights: a path relative to `folder`, or package:NAME.
        weights_by: "name", or "order" for a state dict with other names but the same shapes in the same order.
        features: "logits", or "statistics" (see StageStatistics).

    Raises:
        ArtifactError: timm or the weights are missing, or the two do not fit.
    """
    timm = _import("timm")
    if architecture not in timm.list_models():
        raise ArtifactError(f"timm has no architecture {architecture!r}", where="network.architecture",
                            remedy="python -c 'import timm; print(timm.list_models(\"*lite*\"))'")
    module = cast(nn.Module, timm.create_model(architecture, num_classes=classes))
    path = weights_path(weights, folder)
    _load_weights(module, read_state_dict(path), path, by_order=weights_by == "order")
    if features == "statistics":
        if not all(hasattr(module, part) for part in ("conv_stem", "bn1", "blocks")):
            raise ArtifactError(f"{architecture} has no stem and blocks to take statistics of",
                                where="network.features", remedy="an EfficientNet or MobileNet of timm has them")
        module = StageStatistics(module)
    return module.eval()


def weights_path(weights: str, folder: Path) -> Path:
    """Where `network.weights` points to.

    Raises:
        ArtifactError: there is nothing, or a package with another number of .pth files than one.
    """
    if not weights.startswith("package:"):
        path = folder / weights
        if not path.is_file():
            raise ArtifactError("the weights are not there", where=f"network.weights: {path}")
        return path
    package = weights.removeprefix("package:")
    origin = _import(package).__file__
    files = sorted(Path(cast(str, origin)).parent.rglob("*.pth"))
    if len(files) != 1:
        raise ArtifactError(f"package {package!r} holds {len(files)} .pth files, and one is expected",
                            where="network.weights", remedy="give the path of the file")
    return files[0]


def read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name, from a safetensors file or a PyTorch checkpoint. Nothing in a checkpoint is executed.

    Raises:
        ArtifactError: another kind of file (TorchScript, ONNX and whole-model checkpoints are named as such).
    """
    kind = weights_kind(path)
    if kind == "safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(str(path))
        except SafetensorError as error:
            raise ArtifactError("cannot read the weights", where=str(path), why=str(error)) from error
    if kind != "checkpoint":
        remedy = "give it as network.file" if kind == "TorchScript" else "save model.state_dict() instead"
        raise ArtifactError(f"{kind} is no state dict", where=str(path), remedy=remedy)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its restricted reader stumbles over
        names = ", ".join(_foreign_globals(path))
        # of torch's message only the finding: the rest advises to open the file all the same
        finding = str(error).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
        raise ArtifactError("the checkpoint holds more than tensors, and is not opened" if names
                            else "cannot read the checkpoint", where=str(path),
                            why=f"it refers to {names}" if names else finding,
                            remedy="torch.save(model.state_dict(), …), or safetensors") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ArtifactError("the checkpoint is no state dict", where=str(path),
                            why=f"it holds a {type(state).__name__}",
                            remedy="torch.save(model.state_dict(), …), or safetensors")
    return state


def _foreign_globals(path: Path) -> list[str]:
    """The functions and classes that a checkpoint would call, beyond those that tensors need.

    Read from the pickles' opcodes: nothing is imported or run.
    """
    names: set[str] = set()
    with contextlib.suppress(Exception):  # a damaged file names what it names before the damage
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.namelist():
                    if entry.endswith("/data.pkl"):
                        with archive.open(entry) as stream:
                            _collect_globals(stream, names)
        else:
            with path.open("rb") as stream:
                while True:  # an older checkpoint is several pickles, one after the other
                    _collect_globals(stream, names)
    return sorted(name for name in names if not _OF_TENSORS.fullmatch(name))


def _collect_globals(stream: IO[bytes], names: set[str]) -> None:
    texts: list[str] = []
    memo: dict[int, str | None] = {}
    last: str | None = None  # what the previous opcode pushed, if a text
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST"):
            names.add(str(argument).replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            names.add(".".join(texts[-2:]))
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = last
        if opcode.name in ("BINGET", "LONG_BINGET"):
            last = memo.get(cast(int, argument))
        else:
            last = argument if isinstance(argument, str) and "UNICODE" in opcode.name else None
        if last is not None:
            texts.append(last)


def weights_kind(path: Path) -> str:
    """What a file is, by its content: "safetensors", "TorchScript", "checkpoint", "ONNX" or "an unknown file"."""
    with path.open("rb") as file:
        head = file.read(64)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any("/code/" in name or name.endswith("constants.pkl") for name in names):
            return "TorchScript"
        return "checkpoint" if any(name.endswith("/data.pkl") for name in names) else "an unknown file"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "safetensors"
    if head[:1] == b"\x80":
        return "checkpoint"
    return "ONNX" if head[:1] == b"\x08" else "an unknown file"


def _load_weights(module: nn.Module, state: dict[str, torch.Tensor], path: Path, by_order: bool) -> None:
    target = module.state_dict()
    if by_order and len(state) == len(target):
        state = dict(zip(target, state.values(), strict=True))
    missing, unknown = sorted(target.keys() - state.keys()), sorted(state.keys() - target.keys())
    if missing or unknown:
        why = "; ".join(f"{len(names)} {word}, such as {names[0]}" for names, word in
                        ((missing, "missing"), (unknown, "unknown")) if names)
        raise ArtifactError("the weights do not fit the architecture", where=str(path), why=why,
                            remedy="weights_by: order, if only the names differ")
    for name, tensor in target.items():
        if tensor.shape != state[name].shape:
            raise ArtifactError("the weights do not fit the architecture", where=str(path),
                                why=f"{name} is {list(state[name].shape)}, and {list(tensor.shape)} is expected")
    module.load_state_dict(state)


def load_torchscript(path: Path) -> torch.jit.ScriptModule:
    """A user's own TorchScript file, in eval mode.

    Raises:
        ArtifactError: missing, or another kind of file.
    """
    if not path.is_file():
        raise ArtifactError("the network is not there", where=f"network.file: {path}")
    kind = weights_kind(path)
    if kind != "TorchScript":
        raise ArtifactError(f"{kind} is no TorchScript", where=str(path),
                            remedy="torch.jit.trace(model.eval(), example).save(…)")
    try:
        network = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        return cast(torch.jit.ScriptModule, network)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError("cannot open the network", where=str(path), why=str(error).partition("\n")[0],
                            remedy="save it again with this version of torch") from error


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ArtifactError(f"the package {name!r} is not installed", why=str(error),
                            remedy="pip install -e '.[demo]'") from error
