"""Fits the demo scorer's head: StandardScaler → PCA → RBF SVR on statistics of the backbone.

Hyperparameters come from cross-validation over photos; figures from photos that no step has seen.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from handlers.svr import SVRHead
from handlers.transforms import Preprocess
from models import datasets
from models.networks import FLAT

Progress = Callable[[str, int, int], None]
Doubles = NDArray[np.float64]

SEED = 7
CROPS_PER_PHOTO = 120
# gamma is relative to scikit-learn's "scale"; wider kernels carry further to photos unlike the others
PAIRS = 40
GRID: dict[str, tuple[Any, ...]] = {"components": (64, 128), "gamma": (0.06, 0.25), "C": (3.0, 10.0, 30.0)}


def fit(network: torch.nn.Module, preprocess: Preprocess, cache: Path,
        progress: Progress) -> tuple[SVRHead, dict[str, Any]]:
    """Fits the head.

    Args:
        network: float32 [N, 3, S, S] → features [N, F].
        cache: a folder for features; they are found again as long as network, photos and code are the same.
        progress: called with (what, done, total).

    Returns:
        The head, and what is recorded of it: hyperparameters, error and rank correlation on held-out photos, and
        their means when every two photos in turn are left out.
    """
    photos = tuple(datasets.PHOTOS)
    crops = datasets.degradation_set(photos, CROPS_PER_PHOTO, preprocess.spec.size, SEED)
    features = _features(network, preprocess, crops, cache, progress)
    scores = np.array([crop.score for crop in crops])
    scenes = np.array([crop.scene for crop in crops])
    held_out = np.isin(scenes, datasets.HELD_OUT)

    best = _search(features[~held_out], scores[~held_out], scenes[~held_out], progress)
    pipeline = _fit_pipeline(features[~held_out], scores[~held_out], **best)
    record = {
        "features": int(features.shape[1]),
        "crops": len(crops),
        "hyperparameters": best,
        "support_vectors": len(pipeline[-1].support_),
        "held_out": {"photos": list(datasets.HELD_OUT),
                     **_quality(pipeline.predict(features[held_out]), scores[held_out])},
        "leave_two_photos_out": _leave_two_out(features, scores, scenes, best, progress),
    }
    return SVRHead.from_sklearn(pipeline), record


def _reduce(features: Doubles) -> tuple[StandardScaler, PCA]:
    scaler = StandardScaler().fit(features)
    # a dead channel varies by rounding alone, which is another one in every runtime: not to be blown up to 1
    scaler.scale_[scaler.scale_ < FLAT] = 1.0
    # randomized: a tenth of the time of a full decomposition, and as good for the leading components
    pca = PCA(max(GRID["components"]), svd_solver="randomized", random_state=SEED)
    return scaler, pca.fit(scaler.transform(features))


def _fit_svr(reduced: Doubles, scores: Doubles, components: int, gamma: float, C: float) -> SVR:  # noqa: N803
    reduced = reduced[:, :components]
    return SVR(C=C, gamma=gamma / (components * reduced.var())).fit(reduced, scores)


def _fit_pipeline(features: Doubles, scores: Doubles, components: int, gamma: float, C: float) -> Pipeline:  # noqa: N803
    scaler, pca = _reduce(features)
    # fewer components are the first ones of more
    pca.components_, pca.n_components_ = pca.components_[:components], components
    pca.explained_variance_ = pca.explained_variance_[:components]
    svr = _fit_svr(pca.transform(scaler.transform(features)), scores, components, gamma, C)
    return Pipeline([("scaler", scaler), ("pca", pca), ("svr", svr)])


def _search(features: Doubles, scores: Doubles, scenes: NDArray[np.str_], progress: Progress) -> dict[str, Any]:
    """The grid's smallest mean absolute error when every scene in turn is left out: over five folds, neighbours in the
    grid are apart by less than it matters which scenes share a fold."""
    grid = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    predicted, folds = np.zeros((len(grid), len(scores))), len(set(scenes.tolist()))
    for fold, (train, test) in enumerate(LeaveOneGroupOut().split(features, scores, scenes)):
        progress("cross-validating over photos", fold, folds)
        scaler, pca = _reduce(features[train])
        seen, unseen = (pca.transform(scaler.transform(features[part])) for part in (train, test))
        for index, values in enumerate(grid):
            svr = _fit_svr(seen, scores[train], **values)
            predicted[index, test] = svr.predict(unseen[:, :values["components"]])
    progress("cross-validating over photos", folds, folds)
    return grid[int(np.abs(predicted - scores).mean(1).argmin())]


def _leave_two_out(features: Doubles, scores: Doubles, scenes: NDArray[np.str_], best: dict[str, Any],
                   progress: Progress) -> dict[str, Any]:
    """Means over pairs of scenes, each judged by a head that has seen neither."""
    pairs = list(itertools.combinations(sorted(set(scenes.tolist())), 2))
    chosen = [pairs[index] for index in np.random.default_rng(SEED).permutation(len(pairs))[:PAIRS]]
    qualities = []
    for index, pair in enumerate(chosen):
        progress("leaving two photos out", index, len(chosen))
        out = np.isin(scenes, pair)
        fitted = _fit_pipeline(features[~out], scores[~out], **best)
        qualities.append(_quality(fitted.predict(features[out]), scores[out]))
    progress("leaving two photos out", len(chosen), len(chosen))
    return {"pairs": len(chosen),
            **{key: round(float(np.mean([quality[key] for quality in qualities])), 4) for key in ("mae", "spearman")}}


def _quality(predicted: Doubles, scores: Doubles) -> dict[str, float]:
    return {"mae": round(float(np.abs(predicted - scores).mean()), 4),
            "spearman": round(float(spearmanr(predicted, scores)[0]), 4)}


def _features(network: torch.nn.Module, preprocess: Preprocess, crops: list[datasets.Crop], cache: Path,
              progress: Progress) -> Doubles:
    """Features of every crop [crops, F], from the cache if nothing that they depend on has changed."""
    path = cache / f"features-{_fingerprint(network, preprocess, crops)}.npy"
    if path.is_file():
        return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(crops), 8):
            progress("extracting features", start, len(crops))
            rows.append(network(preprocess([crop.image for crop in crops[start:start + 8]])).numpy())
    progress("extracting features", len(crops), len(crops))
    features = np.concatenate(rows)
    cache.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npy")
    np.save(temporary, features, allow_pickle=False)
    temporary.replace(path)
    return np.asarray(features, dtype=np.float64)


def _fingerprint(network: torch.nn.Module, preprocess: Preprocess, crops: list[datasets.Crop]) -> str:
    digest = hashlib.sha256(repr(preprocess.spec).encode())
    digest.update(inspect.getsource(type(network)).encode())
    for tensor in network.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for crop in crops:
        digest.update(crop.image.tobytes())
    return digest.hexdigest()[:16]
