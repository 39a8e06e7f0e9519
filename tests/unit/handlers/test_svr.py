"""An SVR head predicts what scikit-learn predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PolynomialFeatures, RobustScaler, StandardScaler
from sklearn.svm import SVR, LinearSVR, NuSVR

from handlers.errors import ArtifactError
from handlers.svr import KERNELS, SVRHead

STEPS = {
    "none": lambda width: [],
    "standard": lambda width: [StandardScaler()],
    "minmax, clipped": lambda width: [MinMaxScaler((-1, 2), clip=True)],
    "standard, whitened pca": lambda width: [StandardScaler(), PCA(max(1, width // 2), whiten=True)],
    "pca": lambda width: [PCA(max(1, width - 1))],
}


class MySVR(SVR):  # type: ignore[misc]
    """Might compute anything."""


def data(width: int, seed: int, rows: int = 40, offset: float = 0.0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    features, unseen = (rng.normal(size=(rows, width)) + offset for _ in range(2))
    scores = np.sin(features[:, 0] - offset) + 0.1 * rng.normal(size=rows)
    return features, scores, unseen


def apart(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest prediction."""
    return float(np.abs(np.asarray(found) - expected).max() / max(np.abs(expected).max(), 1e-6))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@given(kernel=st.sampled_from(["rbf", "linear", "poly", "sigmoid", "LinearSVR"]), nu=st.booleans(),
       steps=st.sampled_from(sorted(STEPS)), C=st.floats(0.01, 100),
       gamma=st.sampled_from(["scale", "auto", 0.01, 1.0]),
       degree=st.integers(1, 4), coef0=st.floats(-1, 1), width=st.integers(2, 40), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
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
@pytest.mark.parametrize("steps", sorted(STEPS))
@pytest.mark.parametrize("kind", [SVR, NuSVR])
def test_p36_features_that_share_a_large_offset(offset: float, steps: str, kind: Any) -> None:
    features, scores, unseen = data(20, 3, offset=offset)
    pipeline = make_pipeline(*STEPS[steps](20), kind(C=10, gamma=0.05)).fit(features, scores)
    head = SVRHead.from_sklearn(pipeline)
    assert apart(head.predict(unseen), pipeline.predict(unseen)) <= 1e-6
    # a network's features come as float32: what scikit-learn makes of the very same numbers in float64
    rounded = unseen.astype(np.float32)
    expected = pipeline.predict(rounded.astype(np.float64))
    assert apart(head.predict(rounded), expected) <= 1e-6
    assert apart(head(torch.from_numpy(rounded)).numpy(), expected) <= 1e-6


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_p36_every_offset_a_feature(offset: float) -> None:
    """Features around different values, none of them 0."""
    features, scores, unseen = data(12, 5)
    shifts = offset * np.linspace(-1, 3, 12)
    svr = SVR(C=10, gamma=0.1).fit(features + shifts, scores)
    assert apart(SVRHead.from_sklearn(svr).predict(unseen + shifts), svr.predict(unseen + shifts)) <= 1e-6


def test_float64_stays_and_every_other_type_gives_float32() -> None:
    features, scores, _ = data(4, 0)
    head = SVRHead.from_sklearn(SVR().fit(features, scores))
    kinds = {torch.float64: torch.float64, torch.float32: torch.float32, torch.float16: torch.float32,
             torch.bfloat16: torch.float32, torch.int64: torch.float32}
    for given_type, expected in kinds.items():
        found = head(torch.from_numpy(features).to(given_type))
        assert (found.dtype, found.shape) == (expected, (len(features),))
    assert head.predict(features).dtype == np.float64


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly", "sigmoid"])
def test_fitted_on_sparse_features(kernel: str) -> None:
    features, scores, unseen = data(6, 2)
    features[np.abs(features) < 0.5] = 0.0
    svr = SVR(kernel=kernel, C=2, coef0=0.5).fit(sparse.csr_matrix(features), scores)
    assert apart(SVRHead.from_sklearn(svr).predict(unseen), svr.predict(sparse.csr_matrix(unseen))) <= 1e-4


def test_no_support_vector_at_all() -> None:
    """Every score within epsilon: the prediction is a constant."""
    features, _, unseen = data(3, 0)
    svr = SVR(epsilon=5.0).fit(features, np.full(len(features), 4.0))
    assert len(svr.support_) == 0
    assert np.allclose(SVRHead.from_sklearn(svr).predict(unseen), svr.predict(unseen))


@pytest.mark.parametrize("scaler", [StandardScaler(with_mean=False), StandardScaler(with_std=False),
                                    StandardScaler(with_mean=False, with_std=False), MinMaxScaler(), "passthrough",
                                    None, PCA(2, svd_solver="randomized", random_state=0)], ids=repr)
def test_every_setting_of_a_step(scaler: Any) -> None:
    features, scores, unseen = data(5, 4)
    features[:, 2] = 7.0  # a feature that never varies
    pipeline = Pipeline([("scaler", scaler), ("svr", SVR(C=3))]).fit(features, scores)
    assert apart(SVRHead.from_sklearn(pipeline).predict(unseen), pipeline.predict(unseen)) <= 1e-6


def test_linear_svr_without_intercept() -> None:
    features, scores, unseen = data(5, 4)
    svr = LinearSVR(fit_intercept=False, max_iter=10_000).fit(features, scores)
    assert apart(SVRHead.from_sklearn(svr).predict(unseen), svr.predict(unseen)) <= 1e-6


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


@pytest.mark.parametrize("regressor", [SVR(C=3), SVR(kernel="poly", degree=2, coef0=1.0), SVR(kernel="linear"),
                                       SVR(kernel="sigmoid", gamma=0.01), NuSVR(), LinearSVR(max_iter=10_000)],
                         ids=repr)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("steps", sorted(STEPS))
def test_every_layer_survives_tracing_and_saving(tmp_path: Path, regressor: Any, steps: str) -> None:
    features, scores, unseen = data(6, 1, offset=100.0)
    head = SVRHead.from_sklearn(make_pipeline(*STEPS[steps](6), clone(regressor)).fit(features, scores))
    head.save(tmp_path / "head.safetensors")
    loaded = SVRHead.load(tmp_path / "head.safetensors")
    assert np.array_equal(loaded.predict(unseen), head.predict(unseen))
    assert not loaded.training
    traced = torch.jit.trace(head, torch.from_numpy(features[:2]).float())
    for count in (1, 2, 7):
        batch = torch.from_numpy(unseen[:count]).float()
        assert torch.allclose(traced(batch), head(batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_ipex_keeps_all_digits_of_a_kernel(kernel: str) -> None:
    """It fuses a matrix product and the factor after it, and rounds that factor to float32."""
    pytest.importorskip("intel_extension_for_pytorch")
    features, scores, unseen = data(6, 1, offset=100.0)
    regressor = SVR(kernel=kernel, degree=2, coef0=1.0).fit(features, scores)
    head = SVRHead.from_sklearn(regressor)
    inputs = torch.from_numpy(unseen)
    frozen = torch.jit.freeze(torch.jit.trace(head, inputs[:2]).eval())
    for count in (1, 2, 7, 7):  # the graph is fused after its first calls
        with torch.inference_mode():
            assert apart(frozen(inputs[:count]).numpy(), regressor.predict(unseen[:count])) <= 1e-6


def test_the_same_head_gives_the_same_file(tmp_path: Path) -> None:
    features, scores, _ = data(6, 1)
    head = SVRHead.from_sklearn(make_pipeline(StandardScaler(), SVR()).fit(features, scores))
    head.save(tmp_path / "one")
    head.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(("estimator", "named"), [
    (RandomForestRegressor(2), "RandomForestRegressor"),
    (SVR(kernel=lambda left, right: left @ right.T), "a function of your own"),
    (make_pipeline(PolynomialFeatures(2), SVR()), "PolynomialFeatures"),
    (make_pipeline(RobustScaler(), SVR()), "RobustScaler"),
    (make_pipeline(MaxAbsScaler(), SVR()), "MaxAbsScaler"),
    (make_pipeline(TruncatedSVD(2), SVR()), "TruncatedSVD"),
    (make_pipeline(StandardScaler(), Ridge()), "Ridge"),
    (make_pipeline(StandardScaler(), PCA(2)), "PCA cannot become"),
    (make_pipeline(StandardScaler(), "passthrough"), "'passthrough' cannot become"),
    (make_pipeline(make_pipeline(StandardScaler()), SVR()), "Pipeline cannot go before"),
    (GridSearchCV(SVR(), {"C": [1.0]}, cv=2), "GridSearchCV"),
    (MySVR(), "MySVR"),
], ids=["another estimator", "a kernel function", "another step", "RobustScaler", "MaxAbsScaler", "TruncatedSVD",
        "another last step", "a transformer last", "nothing last", "a pipeline within", "a search", "a subclass"])
def test_what_is_not_supported_is_refused_by_name(estimator: Any, named: str) -> None:
    features, scores, _ = data(3, 0)
    with pytest.raises(ArtifactError) as refused:
        SVRHead.from_sklearn(estimator.fit(features, scores))
    assert named in str(refused.value) and "SVR, NuSVR" in str(refused.value) and "PCA" in str(refused.value)


def test_a_precomputed_kernel_is_refused_by_name() -> None:
    features, scores, _ = data(3, 0)
    with pytest.raises(ArtifactError, match="'precomputed'") as refused:
        SVRHead.from_sklearn(SVR(kernel="precomputed").fit(features @ features.T, scores))
    assert "rbf, linear, poly, sigmoid" in str(refused.value)


@pytest.mark.parametrize("estimator", [SVR(), NuSVR(), LinearSVR(), make_pipeline(StandardScaler(), SVR()),
                                       make_pipeline(MinMaxScaler(), SVR()), make_pipeline(PCA(2), SVR())], ids=repr)
def test_unfitted_is_refused(estimator: Any) -> None:
    with pytest.raises(ArtifactError, match=r"is not fitted(.|\n)*call fit"):
        SVRHead.from_sklearn(estimator)


DESCRIPTIONS = {
    "no JSON": "rbf", "a number": "5", "null": "null", "no layer": "[{}]", "texts": '["affine"]',
    "another layer": '[{"layer": "softmax"}]',
    "another kernel": '[{"layer": "kernel", "kernel": "laplacian", "gamma": 1.0, "coef0": 0.0, "degree": 3}]',
    "facts missing": '[{"layer": "kernel", "kernel": "rbf"}]',
    "layer too many": '[{"layer": "affine"}, {"layer": "clip"}]',
    "no layers": "[]",
}


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, case: str) -> None:
    names = ("centre", "support", "squares", "dual", "intercept")
    save_file({f"layers.0.{name}": torch.ones(2) for name in names}, str(tmp_path / "head"),
              {"svr_head": DESCRIPTIONS[case]})
    with pytest.raises(ArtifactError, match="cannot read the SVR head"):
        SVRHead.load(tmp_path / "head")


def test_safetensors_of_something_else_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, str(tmp_path / "head"))
    for path in (tmp_path / "head", tmp_path / "nothing", tmp_path):
        with pytest.raises(ArtifactError, match="cannot read the SVR head"):
            SVRHead.load(path)


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "head.safetensors").write_bytes(b"nothing of ours")
    with pytest.raises(ArtifactError, match=r"head\.safetensors"):
        SVRHead.load(tmp_path / "head.safetensors")
