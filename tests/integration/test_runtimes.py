"""Every runtime of both demo models against the eager reference, on real photos and random tensors, and served."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.archives import read_archive
from handlers.artifact import Artifact
from handlers.runtimes import open_runtime
from handlers.transforms import Preprocess
from models import datasets

from .conftest import Server, plan_of, tscpu

FP32 = ("ipex", "onnxruntime", "openvino")
PHOTOS = ("coffee", "chelsea", "china", "astronaut", "rocket", "motorcycle_left", "flower", "camera", "coins", "retina")
MODELS = ("food_recognizer", "image_scorer")


@pytest.fixture(scope="session")
def every_runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both demo models, built for all runtimes that can be had."""
    folder = tmp_path_factory.mktemp("auto")
    tscpu("build", *MODELS, "--runtime", "auto", "--model-store", folder)
    return folder


@pytest.fixture(scope="session")
def unpacked(every_runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in MODELS:
        found[name] = tmp_path_factory.mktemp(name)
        with zipfile.ZipFile(every_runtime / f"{name}.mar") as archive:
            archive.extractall(found[name])
    return found


def answers(folder: Path, runtime: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs for ten photos, as they are served, and for ten random tensors."""
    artifact = Artifact.read(folder)
    network = open_runtime(runtime, folder / artifact.files[runtime].file, 1, artifact.input)
    preprocess = Preprocess(artifact.input)
    generator = torch.Generator().manual_seed(1)
    size = artifact.input.size
    with torch.inference_mode():
        photos = [preprocess.pixels(datasets.load_photo(name)) for name in PHOTOS]
        served = [network(photo if network.pixels else preprocess.normalise(photo)) for photo in photos]
        tensors = torch.randn(10, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
        return torch.cat(served), torch.cat([network(tensors[i:i + 1]) for i in range(len(tensors))])


@pytest.mark.parametrize("runtime", FP32)
@pytest.mark.parametrize("model", MODELS)
def test_fp32_runtimes_equal_the_reference(unpacked: dict[str, Path], model: str, runtime: str) -> None:
    for found, wanted in zip(answers(unpacked[model], runtime), answers(unpacked[model], "eager"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-4 * float(wanted.abs().max()))


def test_int8_recognizer_gives_the_same_sure_answers(unpacked: dict[str, Path]) -> None:
    found, wanted = (answers(unpacked["food_recognizer"], name)[0].softmax(1) for name in ("openvino-int8", "eager"))
    top = wanted.sort(1).values
    sure = top[:, -1] - top[:, -2] > 0.2
    assert int(sure.sum()) >= 4
    assert torch.equal(found.argmax(1)[sure], wanted.argmax(1)[sure])


def test_int8_scorer_moves_scores_little(unpacked: dict[str, Path]) -> None:
    found, wanted = (answers(unpacked["image_scorer"], name)[0].flatten() for name in ("openvino-int8", "eager"))
    assert float((found - wanted).abs().mean()) <= 0.2
    # undamaged photos score alike, so their ranks say little (the archive's record has 120 crops of all severities):
    # those that are apart stay in order
    apart = [(i, j) for i in range(len(PHOTOS)) for j in range(len(PHOTOS)) if wanted[i] > wanted[j] + 0.5]
    assert len(apart) >= 5 and all(found[i] > found[j] for i, j in apart)


def test_the_record_tells_the_worst_photo_and_what_was_left_out(unpacked: dict[str, Path]) -> None:
    for model in MODELS:
        parity = Artifact.read(unpacked[model]).record["parity"]
        for name, record in parity["runtimes"].items():
            if record.get("refused"):
                assert name not in Artifact.read(unpacked[model]).files
            else:
                assert record["photos"]["images"] == 120 and record["photos"]["worst"]
        quantized = parity["runtimes"]["openvino-int8"]
        if model == "food_recognizer":
            assert quantized["classes"]["top1_confident"] >= 0.99 and quantized["classes"]["top1"] >= 0.93
            assert quantized["classes"]["food_probability"]["mean_error"] < 0.05
        else:
            assert quantized["scores"]["mae"] <= 0.2 and quantized["scores"]["spearman"] >= 0.995


def test_auto_serves_the_fastest(every_runtime: Path, coffee: bytes, start: Callable[..., Server]) -> None:
    server = start(store=every_runtime).wait_until_ready()
    plan = plan_of(server)
    for model in plan["models"]:
        built = read_archive(every_runtime / f"{model['name']}.mar").built
        assert model["runtime"] == min(built, key=lambda each: each.inference_ms).runtime
        assert f"runtime={model['runtime']}" in server.text()
    assert server.post("food_recognizer", content=coffee).json()["predictions"][0]["label"] == "espresso"
    assert 1 < server.post("image_scorer", content=coffee).json()["score"] < 12
    for _ in range(60):  # enough CPU time for a thread too many to be seen
        server.post("image_scorer", content=coffee)
    found = server.inspect()
    assert found.returncode == 0, found.stdout


def test_the_serving_file_chooses(every_runtime: Path, coffee: bytes, start: Callable[..., Server]) -> None:
    models: dict[str, Any] = {"food_recognizer": {"runtime": "onnxruntime"}, "image_scorer": {"runtime": "ipex"}}
    server = start(store=every_runtime, models=models).wait_until_ready()
    assert {model["name"]: model["runtime"] for model in plan_of(server)["models"]} == {
        name: each["runtime"] for name, each in models.items()}
    assert "ipex_enable=true" in (server.run_dir / "config.properties").read_text()
    best = server.post("food_recognizer", content=coffee).json()["predictions"][0]
    assert best["label"] == "espresso" and abs(best["probability"] - 0.95) < 0.01
    for _ in range(60):
        server.post("food_recognizer", content=coffee)
    found = server.inspect()
    assert found.returncode == 0, found.stdout


def test_a_runtime_that_the_archive_has_not_is_named(every_runtime: Path, store: Path, tmp_path: Path) -> None:
    serving = tmp_path / "serving.yaml"
    serving.write_text(json.dumps({"models": {"colours": {"runtime": "openvino"}}}))
    done = tscpu("plan", "--serving", serving, "--model-store", store, check=False)
    assert done.returncode == 2
    assert "colours cannot be served by openvino" in done.stderr and "--runtime openvino colours" in done.stderr
