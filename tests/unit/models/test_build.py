"""An artifact holds the runtimes that are within tolerance, and of the others nothing but why it lacks them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from handlers.artifact import AUTO, Artifact
from handlers.errors import ArtifactError
from handlers.runtimes import RUNTIMES, open_runtime
from models import export, samples
from models.export import build
from models.formats import Samples
from tests.unit.small_network import SIZE, batch, photo, small_network

pytest.importorskip("openvino")
pytest.importorskip("nncf")
INT8 = "openvino-int8"
LENIENT = {"confident": 0.0, "top1": 0.0, "score_mae": 1e6, "spearman": -1.0, "label_loss": 1e6, "other_int8": 1e6}
IMPOSSIBLE = {"score_mae": 1e-12}


def quiet(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantized")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, quantized: Path) -> None:
    """The reference's own runtime and one that is never exact, which the first test to need it writes for all."""
    real = export.write

    def write(format: str, network: torch.nn.Module, example: torch.Tensor, images: Samples, folder: Path) -> str:
        if format != INT8:
            return real(format, network, example, images, folder)
        if not any(quantized.iterdir()):
            real(format, network, example, images, quantized)
        shutil.copytree(quantized, folder, dirs_exist_ok=True)
        return f"{INT8}.xml"

    monkeypatch.setattr(export, "write", write)
    monkeypatch.setattr(samples, "CALIBRATION", 12)
    monkeypatch.setattr(samples, "HELD_OUT", 6)
    monkeypatch.setattr(export, "RUNTIMES", {name: RUNTIMES[name] for name in ("eager", INT8)})


def model(folder: Path, tolerance: dict[str, float], runtime: str = AUTO) -> Path:
    """A scorer with photos of its own."""
    (folder / "photos").mkdir(parents=True)
    torch.jit.trace(small_network(outputs=1), batch(1)).save(str(folder / "network.pt"))
    for index in range(24):
        Image.fromarray(photo(index, 40, 40)).save(folder / "photos" / f"{index}.png")
    (folder / "model.yaml").write_text(yaml.safe_dump({
        "name": "third", "handler": "image_scorer", "runtime": runtime, "network": {"file": "network.pt"},
        "input": {"size": SIZE}, "photos": "photos", "tolerance": tolerance}))
    return folder


def made(tmp_path: Path, tolerance: dict[str, float], runtime: str | None = None) -> tuple[Artifact, Path]:
    artifact = build(model(tmp_path / "model", tolerance), tmp_path / "out", tmp_path / "cache", quiet, runtime)
    return artifact, tmp_path / "out" / "third"


def records(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "artifact.json").read_text())["record"]["parity"]["runtimes"]
    return found


def test_auto_builds_every_runtime_that_is_within_tolerance(tmp_path: Path) -> None:
    artifact, folder = made(tmp_path, LENIENT)
    assert artifact.runtime == AUTO and set(artifact.files) == {"eager", INT8}
    assert {path.name for path in folder.iterdir()} == {"artifact.json", "eager.pt", "openvino-int8.xml",
                                                        "openvino-int8.bin"}
    assert artifact.files[INT8].package == "openvino"
    assert {"torch", "openvino"} <= set(artifact.versions)
    for name, record in records(folder).items():
        assert "refused" not in record and record["photos"]["images"] == 6
        network = open_runtime(name, folder / artifact.files[name].file, 1, artifact.input)
        with torch.inference_mode():
            assert network(batch(3)).shape[0] == 3
    assert Artifact.read(folder) == artifact


def test_p37_auto_leaves_out_what_is_beyond_tolerance_and_records_why(tmp_path: Path) -> None:
    artifact, folder = made(tmp_path, IMPOSSIBLE)
    assert set(artifact.files) == {"eager"}
    assert {path.name for path in folder.iterdir()} == {"artifact.json", "eager.pt"}
    assert "openvino" not in artifact.versions
    record = records(folder)
    assert "refused" not in record["eager"]
    [*_, why] = [each for each in record[INT8]["refused"] if each.startswith("scores move by")]
    assert ".png" in why and "1e-12 is allowed" in why
    assert record[INT8]["scores"]["mae"] > 0  # what was measured stays, to judge the tolerance by


def test_p37_a_runtime_that_was_asked_for_and_is_beyond_tolerance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=f"the network built for {INT8} differs too much") as caught:
        made(tmp_path, IMPOSSIBLE, INT8)
    assert "scores move by" in caught.value.why and ".png" in caught.value.why
    assert "tolerance" in caught.value.remedy
    assert list((tmp_path / "out").iterdir()) == []


def test_a_refused_build_leaves_the_one_before_it(tmp_path: Path) -> None:
    artifact, folder = made(tmp_path, IMPOSSIBLE, "eager")
    with pytest.raises(ArtifactError, match="differs too much"):
        build(tmp_path / "model", tmp_path / "out", tmp_path / "cache", quiet, INT8)
    assert Artifact.read(folder) == artifact
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["third"]


def test_int8_is_never_built_without_photos_to_judge_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "held_out", lambda spec, folder: [])
    artifact, folder = made(tmp_path, LENIENT)
    assert set(artifact.files) == {"eager"}
    assert records(folder)[INT8]["refused"] == ["there are no photos to judge it on"]


@pytest.mark.parametrize("step", ["write", "open_runtime", "compare"])
def test_what_fails_on_the_way_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    real, seen = getattr(export, step), []

    def fails(*arguments: Any) -> Any:
        result = real(*arguments)  # after its work, so that there is something to leave behind
        seen.append(result)
        if len(seen) == 2:
            raise ArtifactError("it went wrong", where="here")
        return result

    monkeypatch.setattr(export, step, fails)
    artifact, folder = made(tmp_path, LENIENT)
    assert set(artifact.files) == {"eager"}
    assert {path.name for path in folder.iterdir()} == {"artifact.json", "eager.pt"}
    assert records(folder)[INT8]["refused"] == ["it went wrong where: here"]


def test_none_within_tolerance_is_refused_with_all_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "beyond", lambda record, tolerance, quantized: [f"no, with int8 {quantized}"])
    with pytest.raises(ArtifactError, match="no runtime is within tolerance") as caught:
        made(tmp_path, LENIENT)
    assert caught.value.why == f"eager: no, with int8 False; {INT8}: no, with int8 True"
    assert list((tmp_path / "out").iterdir()) == []


def test_auto_leaves_out_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = export.importlib.util.find_spec
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None if name == "nncf" else find(name))
    artifact, folder = made(tmp_path, LENIENT)
    assert set(artifact.files) == set(records(folder)) == {"eager"}


def test_a_runtime_that_nobody_knows_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no runtime 'cuda'") as caught:
        made(tmp_path, LENIENT, "cuda")
    assert caught.value.remedy.startswith("one of eager")
    assert not (tmp_path / "out").exists()
