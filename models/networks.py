"""A model.yaml's `network` → a torch module that maps float32 [N, 3, size, size] to outputs or features.

Fitting and heads live elsewhere; nothing here runs in a worker.
"""

from __future__ import annotations

import contextlib
import difflib
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

FLAT = 1e-3  # deviation of a feature below which it says nothing: a dead channel, which varies by rounding alone
_FLATTENED = re.compile(r"^([a-z]+)_(\d+)")
# what a pickled state dict refers to
_OF_TENSORS = re.compile(r"collections\.OrderedDict|(__builtin__|builtins)\.set|torch\.(\w+Storage|Size)|"
                         r"torch\.(b?float|u?int)\d+|torch\.storage\.\w+|torch\._utils\._rebuild_\w+|torch\.nn\.parameter\.Parameter")


class StageStatistics(nn.Module):
    """Channel means and standard deviations after the stem and after each stage of an EfficientNet-like backbone.

    Pooled features tell what is in a photo and are trained to ignore how good it looks; the statistics of early
    stages carry blur, noise and blocking.

    Output: [N, 2 × sum of the stages' channels], as sign(x)·log(1 + |x|), which tames the channels' heavy tails
    before a StandardScaler.

    Args:
        backbone: of timm, with conv_stem, bn1 and blocks.
        stages: how many of the blocks; None means all.
    """

    def __init__(self, backbone: nn.Module, stages: int | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(cast(nn.Module, backbone.conv_stem), cast(nn.Module, backbone.bn1))
        self.stages = nn.ModuleList(list(cast(Iterable[nn.Module], backbone.blocks))[:stages])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        statistics = [_statistics(x)]
        for stage in self.stages:
            x = stage(x)
            statistics.append(_statistics(x))
        return _tamed(torch.cat(statistics, dim=1))


class PyramidStatistics(nn.Module):
    """The same of the feature maps of any other architecture, as timm's features_only gives them: [N, C, H, W] each."""

    def __init__(self, pyramid: nn.Module) -> None:
        super().__init__()
        self.pyramid = pyramid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _tamed(torch.cat([_statistics(each) for each in self.pyramid(x)], dim=1))


class ScoreNetwork(nn.Module):
    """A scorer of one stage: statistics of a backbone, standardised, and a linear layer. [N, 3, S, S] → [N].

    Args:
        statistics: [N, 3, S, S] → [N, width].
    """

    LIMIT = 8.0  # standard deviations: beyond what any training photo had, a feature counts no further
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, statistics: nn.Module, width: int) -> None:
        super().__init__()
        self.statistics = statistics
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.linear = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.statistics(x))

    def score(self, statistics: torch.Tensor) -> torch.Tensor:
        """[N, width] → [N]."""
        standard = ((statistics - self.mean) * self.scale).clamp(-self.LIMIT, self.LIMIT)
        return cast(torch.Tensor, self.linear(standard))[:, 0]


def _statistics(x: torch.Tensor) -> torch.Tensor:
    """[N, C, H, W] → [N, 2C]. Written out, this costs a third of torch's std on a CPU; E[x²] − E[x]², no cheaper, loses
    all digits of channels that hardly vary, and each runtime other ones."""
    mean = x.mean((2, 3))
    apart = x - mean[:, :, None, None]
    return torch.cat([mean, (apart * apart).mean((2, 3)).add(1e-8).sqrt()], dim=1)


def _tamed(features: torch.Tensor) -> torch.Tensor:
    return torch.sign(features) * torch.log1p(torch.abs(features))


def load_network(architecture: str, weights: str, weights_by: str, classes: int, features: str,
                 folder: Path, stages: int | None = None) -> nn.Module:
    """A timm architecture with its weights, in eval mode.

    Args:
        weights: a path relative to `folder`, or package:NAME. Of the whole architecture; for "score" of the
            ScoreNetwork, which distillation writes.
        weights_by: "name", or "order" for a state dict with other names but the same shapes in the same order.
        features: "logits", "statistics" (see StageStatistics) or "score" (see ScoreNetwork).
        stages: how many stages statistics are taken of; None means all.

    Raises:
        ArtifactError: timm or the weights are missing, or the two do not fit.
    """
    path = weights_path(weights, folder)
    state = read_state_dict(path)
    if features == "score":
        width = state["linear.weight"].shape[-1] if "linear.weight" in state else 1
        scorer = ScoreNetwork(create_statistics(architecture, stages), width)
        load_weights(scorer, state, path, by_order=False)
        return scorer.eval()
    module = create_architecture(architecture, num_classes=classes)
    load_weights(module, state, path, by_order=weights_by == "order")
    return (module if features == "logits" else create_statistics(architecture, stages, module)).eval()


def create_architecture(architecture: str, **options: Any) -> nn.Module:
    """A timm architecture with random weights.

    Raises:
        ArtifactError: timm is not installed, or has no such architecture.
    """
    timm = _import("timm")
    if architecture not in timm.list_models():
        near = difflib.get_close_matches(architecture, timm.list_models(), 1)
        raise ArtifactError(f"timm has no architecture {architecture!r}", where="network.architecture",
                            remedy=f"{near[0]}?" if near
                            else "python -c 'import timm; print(timm.list_models(\"*lite*\"))'")
    return cast(nn.Module, timm.create_model(architecture, **options))


def create_statistics(architecture: str, stages: int | None = None, module: nn.Module | None = None) -> nn.Module:
    """The statistics of an architecture's stages.

    Args:
        module: the architecture with its weights; None takes random ones.

    Raises:
        ArtifactError: it has fewer stages than asked for, or hands out no feature maps.
    """
    module = create_architecture(architecture) if module is None else module
    staged = all(hasattr(module, part) for part in ("conv_stem", "bn1", "blocks"))
    pyramid = None if staged else _pyramid(architecture)
    count = len(cast(nn.Sequential, module.blocks)) if pyramid is None else len(cast(Any, pyramid).feature_info)
    if stages is not None and stages > count:
        raise ArtifactError(f"{architecture} has {count} stages", where="network.stages", why=f"{stages} are asked for")
    if pyramid is None:
        return StageStatistics(module, stages)
    if stages is not None:
        pyramid = _pyramid(architecture, out_indices=tuple(range(stages)))
    state = module.state_dict()
    # timm's feature extractors flatten stages.0 to stages_0, or wrap the whole model
    names = {name: name if name in state else _FLATTENED.sub(r"\1.\2", name.removeprefix("model."))
             for name in pyramid.state_dict()}
    if missing := [name for name, own in names.items() if own not in state]:
        raise ArtifactError(f"{architecture} names its weights otherwise where it hands out feature maps",
                            where="network.features", why=f"{missing[0]} is not among its own",
                            remedy="an EfficientNet, MobileNet, ResNet or ConvNeXt of timm works")
    pyramid.load_state_dict({name: state[own] for name, own in names.items()})
    return PyramidStatistics(pyramid)


def _pyramid(architecture: str, **options: Any) -> nn.Module:
    try:
        return create_architecture(architecture, features_only=True, **options)
    except (RuntimeError, AssertionError, AttributeError, TypeError, KeyError) as error:
        raise ArtifactError(f"{architecture} hands out no feature maps to take statistics of", where="network.features",
                            why=str(error).partition("\n")[0],
                            remedy="an EfficientNet, MobileNet, ResNet or ConvNeXt of timm does") from error


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


def load_weights(module: nn.Module, state: dict[str, torch.Tensor], path: Path, by_order: bool) -> None:
    """Fills a module from a state dict that must have exactly its tensors.

    Raises:
        ArtifactError: names or shapes do not fit; the first of each is named.
    """
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
