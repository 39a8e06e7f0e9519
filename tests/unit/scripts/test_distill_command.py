"""tscpu distill from a folder of photos to a student that can be built, or to numbers that say why there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from models import export
from scripts.cli import application
from tests.unit.small_network import CLASSES, SIZE, photo, small_network

pytest.importorskip("matplotlib")
pytest.importorskip("timm")
COLOURS = ["amber", "blue", "cyan", "drab", "ecru"]
STUDENT = '''
from torch import nn

def tiny(outputs):
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                         nn.Linear(32, outputs))
'''
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unlabelled photos; the teacher labels them."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(90):
        Image.fromarray(photo(index, 40, 48)).save(folder / f"{index}.png")
    return folder


def teacher(folder: Path, **more: Any) -> Path:
    folder.mkdir()
    torch.jit.trace(small_network(more.pop("outputs", CLASSES)), torch.zeros(2, 3, SIZE, SIZE)).save(  # type: ignore[no-untyped-call]
        str(folder / "network.pt"))
    (folder / "labels.json").write_text(json.dumps(COLOURS))
    (folder / "model.yaml").write_text(yaml.safe_dump({
        "name": "colours", "runtime": "eager", "network": {"file": "network.pt"}, "labels": "labels.json",
        "input": {"size": SIZE}, "output": {"top_k": 3}, **more}))
    (folder / "student.py").write_text(STUDENT)
    return folder


@pytest.fixture
def run(tmp_path: Path, photos: Path) -> Run:
    def call(model: Path, *options: str, data: Path = photos) -> Result:
        arguments = ["distill", str(model), "--data", str(data), "--epochs", "2", "--batch", "16",
                     "--out", str(tmp_path / "work"), "--to", str(tmp_path / "students"), *options]
        return CliRunner().invoke(application(arguments), arguments)

    return call


def test_a_student_within_the_gate_becomes_a_model_folder_that_builds(tmp_path: Path, run: Run) -> None:
    model = teacher(tmp_path / "colours")
    done = run(model, "--student", f"{model / 'student.py'}:tiny@24", "--max-drop", "accuracy=100")
    assert done.exit_code == 0, done.output
    student = tmp_path / "students" / "colours_student"
    spec = yaml.safe_load((student / "model.yaml").read_text())
    assert (spec["name"], spec["handler"], spec["output"]) == ("colours_student", "classifier", {"top_k": 3})
    assert spec["input"]["size"] == 24
    provenance = json.loads((student / "provenance.json").read_text())
    assert provenance["teacher"]["name"] == "colours"
    assert provenance["student"]["gate"]["against"] == "teacher"
    assert provenance["student"]["learnt"]["options"]["seed"] == 0
    assert sorted(path.name for path in (tmp_path / "students").iterdir()) == ["colours_student"]
    artifact = export.build(student, tmp_path / "artifacts", tmp_path / "cache", lambda what, done, total: None, "ipex")
    assert artifact.labels == tuple(COLOURS)


def test_a_student_beyond_the_gate_is_reported_and_not_handed_over(tmp_path: Path, run: Run) -> None:
    model = teacher(tmp_path / "colours")
    done = run(model, "--students", f"{model / 'student.py'}:tiny", "--sizes", "16,24", "--max-drop", "accuracy=0")
    assert done.exit_code == 1, done.output
    assert done.output.count("FAIL") == 2 and "none was handed over" in done.output
    assert not (tmp_path / "students").exists()
    work = tmp_path / "work"
    assert (work / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert "tiny-16" in (work / "pareto.md").read_text()
    record = json.loads((work / "report.json").read_text())
    assert record["handed_over"] is None
    assert [row["gate"]["passed"] for row in record["candidates"]] == [False, False]


def test_a_scorers_student_of_an_architecture_crops_and_reads_scores_from_a_csv(tmp_path: Path, photos: Path,
                                                                                  run: Run) -> None:
    model = teacher(tmp_path / "scorer", outputs=1, name="brightness", handler="image_scorer", labels=None,
                    output={})
    csv = tmp_path / "scores.csv"
    csv.write_text("file,label\n" + "".join(f"{index}.png,{index / 10}\n" for index in range(90)))
    done = run(model, "--student", "mobilenetv3_small_050:1@24", "--labels", str(csv), "--max-drop",
               "mae=1000,spearman=2", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.output[done.output.index("{"):done.output.rindex("}") + 1])
    assert record["data"]["labelled"] is True
    assert [figure["name"] for figure in record["candidates"][0]["gate"]["figures"]] == ["MAE", "Spearman"]
    spec = yaml.safe_load((tmp_path / "students" / "brightness_student" / "model.yaml").read_text())
    assert spec["network"] == {"architecture": "mobilenetv3_small_050", "weights": "student.safetensors",
                               "features": "score", "stages": 1}
    # a crop: the resize is the teacher's
    assert (spec["input"]["size"], spec["input"]["resize"]) == (24, round(SIZE / 0.875))


def test_the_fastest_that_passes_is_handed_over_under_the_name_that_is_asked_for(tmp_path: Path, run: Run) -> None:
    model = teacher(tmp_path / "colours")
    done = run(model, "--students", f"{model / 'student.py'}:tiny@32,{model / 'student.py'}:tiny@8", "--max-drop",
               "accuracy=100", "--name", "quick", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "work" / "report.json").read_text())
    rows = record["candidates"]
    assert rows[record["handed_over"]["index"]]["ms"] == min(row["ms"] for row in rows)
    assert (tmp_path / "students" / "quick" / "model.yaml").is_file()


@pytest.mark.parametrize(("options", "named"), [
    (["--student", "no_such_net"], "no_such_net"),
    (["--student", "resnet18@x"], "'x'"),
    (["--student", ","], "--students"),
    (["--student", "resnet18", "--loss", "l1"], "--loss"),
    (["--student", "resnet18", "--fit", "stretch"], "--fit"),
    (["--student", "resnet18", "--max-drop", "f1=2"], "f1=2"),
    (["--student", "resnet18@999", "--fit", "crop"], "--size 999"),
    (["--student", "resnet18", "--labels", "folders"], "folder"),
    (["--student", "resnet18", "--weights", "missing.pth"], "missing.pth")])
def test_what_cannot_be_used_is_named_and_nothing_is_left(options: list[str], named: str, tmp_path: Path,
                                                          run: Run) -> None:
    done = run(teacher(tmp_path / "colours"), *options)
    assert done.exit_code == 2, done.output
    assert named in done.output
    assert not (tmp_path / "students").exists()


def test_the_demo_set_is_for_scorers(tmp_path: Path, run: Run) -> None:
    model = teacher(tmp_path / "colours")
    done = run(model, "--student", "resnet18", data=Path("demo"))
    assert done.exit_code == 2 and "a recognizer" in done.output
