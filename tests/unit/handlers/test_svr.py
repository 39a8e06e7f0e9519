"""An SVR head predicts what scikit-learn predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler
from sklearn.svm import SVR, LinearSVR, NuSVR

from handlers.errors import ArtifactError
from handlers.svr import SVRHead

STEPS = {
    "none": lambda width: [],
    "standard": lambda width: [StandardScaler()],
    "minmax, clipped": lambda width: [MinMaxScaler((-1, 2), clip=True)],
    "standard, whitened pca": lambda width: [StandardScaler(), PCA(max(1, width // 2), whiten=True)],
    "pca": lambda width: [PCA(max(1, width - 1))],
}


def data(width: int, seed: int, rows: int = 40, offset: float = 0.0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    features, unseen = (rng.normal(size=(rows, width)) + offset for _ in range(2))
    scores = np.sin(features[:, 0] - offset) + 0.1 * rng.normal(size=rows)
    return features, scores, unseen


def apart(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest prediction."""
    return float(np.abs(np.asarray(found) - expected).max() / max(np.abs(expected).max(), 1e-6))


@given(kernel=st.sampled_from(["rbf", "linear", "poly", "sigmoid", "LinearSVR"]), nu=st.booleans(),
       steps=st.sampled_from(sorted(STEPS)), C=st.floats(0.01, 100),
       gamma=st.sampled_from(["scale", "auto", 0.01, 1.0]),
       degree=st.integers(1, 4), coef0=st.floats(-1, 1), width=st.integers(2, 40), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_predictions_equal_scikit_learns(kernel: str, nu: bool, steps: str, C: float, gamma: Any,  # noqa: N803
                                         degree: int, coef0: float, width: int, seed: int) -> None:
    features, scores, unseen = data(width, seed)
    if kernel == "LinearSVR":
        regressor: Any = LinearSVR(C=C, max_iter=200)
    else:
        kind = NuSVR if nu else SVR
        regressor = kind(kernel=kernel, C=C, gamma=gamma, degree=degree, coef0=coef0, max_iter=5000)
    pipeline = make_pipeline(*STEPS[steps](width), regressor).fit(features, scores)
    head = SVRHead.from_sklearn(pipeline)
    assert apart(head.predict(unseen), pipeline.predict(unseen)) <= 1e-4


@pytest.mark.parametrize("offset", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("steps", ["none", "standard"])
def test_p36_features_that_share_a_large_offset(offset: float, steps: str) -> None:
    features, scores, unseen = data(20, 3, offset=offset)
    pipeline = make_pipeline(*STEPS[steps](20), SVR(C=10, gamma=0.05)).fit(features, scores)
    assert apart(SVRHead.from_sklearn(pipeline).predict(unseen), pipeline.predict(unseen)) <= 1e-6


def test_p36_lists_and_any_number_type_alike() -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(0, 9, (30, 4))
    svr = SVR(C=5).fit(features, features.sum(1))
    head, expected = SVRHead.from_sklearn(svr), svr.predict(features)
    for same in (features.tolist(), features, features.astype(np.float32), features.astype(np.float64)):
        assert apart(head.predict(same), expected) <= 1e-6


def test_survives_tracing_and_saving(tmp_path: Path) -> None:
    features, scores, unseen = data(8, 1)
    pipeline = make_pipeline(StandardScaler(), PCA(4), SVR(C=3)).fit(features, scores)
    head = SVRHead.from_sklearn(pipeline)
    inputs = torch.from_numpy(unseen).float()
    traced = torch.jit.trace(head, inputs[:2])
    assert apart(traced(inputs).numpy(), pipeline.predict(inputs.numpy())) <= 1e-6
    head.save(tmp_path / "head.safetensors")
    loaded = SVRHead.load(tmp_path / "head.safetensors")
    assert np.array_equal(loaded.predict(unseen), head.predict(unseen))


@pytest.mark.parametrize(("estimator", "named"), [
    (RandomForestRegressor(2), "RandomForestRegressor"),
    (SVR(kernel=lambda left, right: left @ right.T), "a function of your own"),
    (make_pipeline(PolynomialFeatures(2), SVR()), "PolynomialFeatures"),
], ids=["another estimator", "a kernel function", "another step"])
def test_what_is_not_supported_is_refused_by_name(estimator: Any, named: str) -> None:
    features, scores, _ = data(3, 0)
    with pytest.raises(ArtifactError) as refused:
        SVRHead.from_sklearn(estimator.fit(features, scores))
    assert named in str(refused.value) and "SVR, NuSVR" in str(refused.value) and "PCA" in str(refused.value)


def test_unfitted_is_refused() -> None:
    with pytest.raises(ArtifactError, match="not fitted"):
        SVRHead.from_sklearn(SVR())


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "head.safetensors").write_bytes(b"nothing of ours")
    with pytest.raises(ArtifactError, match=r"head\.safetensors"):
        SVRHead.load(tmp_path / "head.safetensors")
