"""SVRHead: a fitted scikit-learn SVR (± scaler, PCA) as a torch module in the same graph as its backbone.

scikit-learn is never imported here: a fitted estimator is read by its attributes, so a worker needs none of it.
Arithmetic is float64 throughout. A head is a sliver of the network's work, and float32 loses the score where
features share a large offset: |x|² + |s|² − 2x·s cancels all digits that count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from handlers.errors import ArtifactError

KERNELS = ("rbf", "linear", "poly", "sigmoid")
SUPPORTED = ("SVR, NuSVR (kernels " + ", ".join(KERNELS) + ") and LinearSVR, alone or last in a Pipeline after "
             "StandardScaler, MinMaxScaler or PCA")

Doubles = NDArray[np.float64]


class Affine(nn.Module):
    """x → (x − centre) · weight, then + shift: a scaler (weight a vector) or a PCA (weight a matrix).

    Subtracting first keeps the digits of features with a large common offset.
    """

    centre: torch.Tensor
    weight: torch.Tensor
    shift: torch.Tensor

    def __init__(self, centre: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("weight", weight)
        self.register_buffer("shift", shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - self.centre
        return (x @ self.weight if self.weight.dim() == 2 else x * self.weight) + self.shift


class Clip(nn.Module):
    """MinMaxScaler(clip=True)'s last step."""

    bounds: torch.Tensor

    def __init__(self, bounds: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("bounds", bounds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(torch.maximum(x, self.bounds[0]), self.bounds[1])


class Kernel(nn.Module):
    """Σ dualᵢ · k(supportᵢ, x) + intercept, with the kernels of libsvm.

    rbf: exp(−γ|x − s|²); poly: (γ x·s + c)^degree; sigmoid: tanh(γ x·s + c); linear: x·s
    (Chang and Lin, LIBSVM: a library for support vector machines, section 2).
    """

    centre: torch.Tensor
    support: torch.Tensor
    squares: torch.Tensor
    dual: torch.Tensor
    intercept: torch.Tensor

    def __init__(self, kernel: str, gamma: float, coef0: float, degree: int,
                 support: torch.Tensor, dual: torch.Tensor, intercept: torch.Tensor) -> None:
        super().__init__()
        self.kernel, self.gamma, self.coef0, self.degree = kernel, gamma, coef0, degree
        # For rbf only differences count: centring support vectors and inputs alike keeps |x|² small.
        centre = support.mean(0) if kernel == "rbf" else torch.zeros_like(support[0])
        support = support - centre
        if kernel in ("poly", "sigmoid"):
            # γ goes into them: IPEX fuses a matrix product with a factor beside it, and keeps that in float32
            support = gamma * support
        self.register_buffer("centre", centre)
        self.register_buffer("support", support)
        self.register_buffer("squares", (support * support).sum(1))
        self.register_buffer("dual", dual)
        self.register_buffer("intercept", intercept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - self.centre
        products = x @ self.support.t()
        if self.kernel == "rbf":
            squares = (x * x).sum(1, keepdim=True) + self.squares - 2.0 * products
            values = torch.exp(-self.gamma * squares.clamp(min=0.0))
        elif self.kernel == "poly":
            # torch.pow, not **: the tracer records an integer power exactly
            values = torch.pow(products + self.coef0, self.degree)
        elif self.kernel == "sigmoid":
            values = torch.tanh(products + self.coef0)
        else:
            values = products
        return values @ self.dual + self.intercept


class SVRHead(nn.Module):
    """Features [N, F] of any float type → scores [N], float32 (float64 inputs give float64)."""

    def __init__(self, layers: list[nn.Module], description: list[dict[str, Any]]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.description = description

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(features.double())
        return scores if features.dtype == torch.float64 else scores.float()

    def predict(self, features: ArrayLike) -> Doubles:
        """The scores of a list or an array of any number type, [N, F] → float64 [N]."""
        with torch.inference_mode():
            return cast(Doubles, self(torch.as_tensor(np.asarray(features, dtype=np.float64))).numpy())

    def save(self, path: Path) -> None:
        """Writes the head as one safetensors file, its structure as JSON in the file's metadata."""
        from safetensors.torch import save_file

        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, str(path), metadata={"svr_head": json.dumps(self.description)})

    @classmethod
    def load(cls, path: Path) -> SVRHead:
        """The inverse of save.

        Raises:
            ArtifactError: not a file that save wrote.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                description = json.loads((file.metadata() or {})["svr_head"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            layers: list[nn.Module] = []
            for index, layer in enumerate(description):
                state = {key.split(".", 2)[2]: value for key, value in tensors.items()
                         if key.startswith(f"layers.{index}.")}
                layers.append(_rebuild(layer, state))
            head = cls(layers, description)
            head.load_state_dict(tensors)
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
            raise ArtifactError("cannot read the SVR head", where=str(path), why=f"{type(error).__name__}: {error}",
                                remedy="write it with SVRHead.save, from SVRHead.from_sklearn(fitted)") from error
        return head.eval()

    @classmethod
    def from_sklearn(cls, estimator: Any) -> SVRHead:
        """A fitted estimator as a head. Predictions equal scikit-learn's to rounding.

        Args:
            estimator: see SUPPORTED.

        Raises:
            ArtifactError: another estimator, kernel or step, or one that is not fitted.
        """
        steps = [step for _, step in estimator.steps] if _kind(estimator) == "Pipeline" else [estimator]
        layers: list[nn.Module] = []
        description: list[dict[str, Any]] = []
        for position, step in enumerate(steps):
            last = position == len(steps) - 1
            if (step is None or step == "passthrough") and not last:
                continue
            for layer, facts in (_regressor(step) if last else _transformer(step)):
                layers.append(layer)
                description.append(facts)
        return cls(layers, description).eval()


def _kind(estimator: Any) -> str:
    """The class name of a scikit-learn object. A subclass or a look-alike is not one: it may compute otherwise."""
    kind = type(estimator)
    return kind.__name__ if kind.__module__.startswith("sklearn.") else f"{kind.__module__}.{kind.__qualname__}"


def _tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def _fitted(estimator: Any, attribute: str) -> Any:
    try:
        return getattr(estimator, attribute)
    except AttributeError:
        raise ArtifactError(f"{_kind(estimator)} is not fitted", why=f"it has no {attribute}",
                            remedy="call fit(features, scores) first") from None


def _affine(centre: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> tuple[nn.Module, dict[str, Any]]:
    return Affine(centre, weight, shift), {"layer": "affine"}


def _transformer(step: Any) -> list[tuple[nn.Module, dict[str, Any]]]:
    kind = _kind(step)
    if kind == "StandardScaler":
        width = _fitted(step, "n_features_in_")
        mean = _tensor(step.mean_ if step.with_mean else np.zeros(width))
        scale = _tensor(step.scale_ if step.with_std else np.ones(width))
        return [_affine(mean, 1.0 / scale, torch.zeros_like(mean))]
    if kind == "MinMaxScaler":
        low, scale = _tensor(_fitted(step, "data_min_")), _tensor(_fitted(step, "scale_"))
        floor = torch.full_like(low, float(step.feature_range[0]))
        result = [_affine(low, scale, floor)]
        if step.clip:
            result.append((Clip(_tensor(step.feature_range)), {"layer": "clip"}))
        return result
    if kind == "PCA":
        components = _tensor(_fitted(step, "components_"))
        mean = _tensor(np.zeros(components.shape[1]) if step.mean_ is None else step.mean_)
        if step.whiten:
            # scikit-learn floors the scale the same way, for components without any variance
            floor = np.finfo(np.asarray(step.explained_variance_).dtype).eps
            components = components / _tensor(step.explained_variance_).sqrt().clamp(min=float(floor)).unsqueeze(1)
        return [_affine(mean, components.t().contiguous(), torch.zeros(len(components), dtype=torch.float64))]
    raise ArtifactError(f"{kind} cannot go before an SVR head", remedy=f"supported: {SUPPORTED}")


def _regressor(step: Any) -> list[tuple[nn.Module, dict[str, Any]]]:
    kind = _kind(step)
    if kind == "LinearSVR":
        weights = _tensor(_fitted(step, "coef_")).reshape(1, -1)
        intercept = _tensor(np.ravel(step.intercept_)[:1] if np.size(step.intercept_) else [0.0])
        return [_kernel({"kernel": "linear", "gamma": 1.0, "coef0": 0.0, "degree": 1},
                        weights, torch.ones(1, dtype=torch.float64), intercept)]
    if kind not in ("SVR", "NuSVR"):
        kind = repr(step) if step is None or isinstance(step, str) else kind
        raise ArtifactError(f"{kind} cannot become an SVR head", remedy=f"supported: {SUPPORTED}")
    support = _fitted(step, "support_vectors_")
    if step.kernel not in KERNELS:
        name = step.kernel if isinstance(step.kernel, str) else "a function of your own"
        raise ArtifactError(f"{kind} with kernel {name!r} cannot become an SVR head", remedy=f"supported: {SUPPORTED}")
    if not isinstance(support, np.ndarray):
        support = support.toarray()
    dual = step.dual_coef_ if isinstance(step.dual_coef_, np.ndarray) else step.dual_coef_.toarray()
    if len(support) == 0:
        # a constant: every sample inside the epsilon tube
        support, dual = np.zeros((1, step.n_features_in_)), np.zeros((1, 1))
    facts = {"kernel": step.kernel, "gamma": float(step._gamma), "coef0": float(step.coef0), "degree": int(step.degree)}
    return [_kernel(facts, _tensor(support), _tensor(dual).reshape(-1), _tensor(step.intercept_).reshape(1))]


def _kernel(facts: dict[str, Any], support: torch.Tensor, dual: torch.Tensor,
            intercept: torch.Tensor) -> tuple[nn.Module, dict[str, Any]]:
    return Kernel(**facts, support=support, dual=dual, intercept=intercept), {"layer": "kernel", **facts}


def _rebuild(layer: dict[str, Any], state: dict[str, torch.Tensor]) -> nn.Module:
    """An empty layer of the right shapes; load_state_dict fills it."""
    facts = {key: value for key, value in layer.items() if key != "layer"}
    if layer["layer"] == "affine":
        return Affine(state["centre"], state["weight"], state["shift"])
    if layer["layer"] == "clip":
        return Clip(state["bounds"])
    if layer["layer"] != "kernel" or facts["kernel"] not in KERNELS:
        raise ValueError(f"layer {layer!r} is not known")
    return Kernel(**facts, support=state["support"], dual=state["dual"], intercept=state["intercept"])
