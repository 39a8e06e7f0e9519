"""What is wrong in a model.yaml is said before anything is built: the field, the value, what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from handlers.errors import ArtifactError
from handlers.transforms import InputSpec
from models.spec import read_spec

ROOT = Path(__file__).resolve().parents[3]
SMALLEST: dict[str, Any] = {"name": "third", "network": {"file": "net.pt"}}


def write(folder: Path, data: Any) -> Path:
    (folder / "model.yaml").write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return folder


def refused(folder: Path, data: Any) -> str:
    """The refusal's text, which always names the file."""
    with pytest.raises(ArtifactError) as caught:
        read_spec(write(folder, data))
    assert str(folder / "model.yaml") in str(caught.value)
    return str(caught.value)


def test_the_smallest_has_sound_defaults(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path, SMALLEST))
    assert (spec.version, spec.handler, spec.runtime, spec.batch.size, spec.output.top_k) == \
        ("1.0", "classifier", "ipex", 1, 5)
    assert spec.input.resolved() == InputSpec(size=224, resize=256, interpolation="bicubic", mean=(0.485, 0.456, 0.406),
                                              std=(0.229, 0.224, 0.225), exif=True, background=(255, 255, 255),
                                              max_pixels=50_000_000)


@pytest.mark.parametrize("name", ["food_recognizer", "image_scorer", "image_scorer_large"])
def test_the_demo_models_are_right(name: str) -> None:
    assert read_spec(ROOT / "models" / name).name == name


@pytest.mark.parametrize(("size", "resize"), [(224, 256), (260, 297), (8, 9), (160, 183)])
def test_resize_follows_from_size(tmp_path: Path, size: int, resize: int) -> None:
    assert read_spec(write(tmp_path, {**SMALLEST, "input": {"size": size}})).input.resolved().resize == resize


# what is added to the smallest → what the refusal says
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no name": ({"name": None}, ["name: ", "found None"]),
    "name with a slash": ({"name": "a/b"}, ["name: letters, digits", "found 'a/b'"]),
    "name that climbs": ({"name": "../x"}, ["name: ", "found '../x'"]),
    "name with a blank": ({"name": "my model"}, ["name: ", "found 'my model'"]),
    "version as a number": ({"version": 1.0}, ["version: ", "found 1.0"]),
    "unknown key": ({"lables": "x.json"}, ["lables: ", "found 'x.json'"]),
    "unknown key in a section": ({"input": {"sise": 8}}, ["input.sise: ", "found 8"]),
    "handler unknown": ({"handler": "clasifier"}, ["handler: one of classifier, food_recognizer, image_scorer, or "
                                                   "FILE.py:CLASS beside model.yaml", "found 'clasifier'"]),
    "handler in another folder": ({"handler": "../mine.py:Mine"}, ["handler: ", "found '../mine.py:Mine'"]),
    "handler without class": ({"handler": "mine.py"}, ["handler: ", "found 'mine.py'"]),
    "runtime unknown": ({"runtime": "cuda"}, ["runtime: one of eager, ipex", "found 'cuda'"]),
    "size is text": ({"input": {"size": "large"}}, ["input.size: ", "found 'large'"]),
    "size too small": ({"input": {"size": 4}}, ["input.size: ", "8", "found 4"]),
    "resize below size": ({"input": {"size": 224, "resize": 200}}, ["input: resize 200 is smaller than size 224"]),
    "interpolation": ({"input": {"interpolation": "nearest"}}, ["input.interpolation: ", "'bicubic'",
                                                                "found 'nearest'"]),
    "two means": ({"input": {"mean": [0.5, 0.5]}}, ["input.mean.2: "]),
    "mean is not a number": ({"input": {"mean": [0.5, float("nan"), 0.5]}}, ["input.mean.1: ", "found nan"]),
    "std of nothing": ({"input": {"std": [0.5, 0.0, 0.5]}}, ["input.std: every std must be above 0", "0.0"]),
    "std is not a number": ({"input": {"std": [0.5, 0.5, float("nan")]}}, ["input.std.2: ", "found nan"]),
    "std is infinite": ({"input": {"std": [float("inf"), 0.5, 0.5]}}, ["input.std.0: ", "found inf"]),
    "background": ({"input": {"background": [0, 0, 256]}}, ["input.background.2: ", "255", "found 256"]),
    "top_k": ({"output": {"top_k": 0}}, ["output.top_k: ", "found 0"]),
    "batch": ({"batch": {"size": 1000}}, ["batch.size: ", "256", "found 1000"]),
    "delay": ({"batch": {"max_delay_ms": 0}}, ["batch.max_delay_ms: ", "found 0"]),
    "network missing": ({"network": None}, ["network: ", "found None"]),
    "file and architecture": ({"network": {"file": "net.pt", "architecture": "resnet18", "weights": "w.pth"}},
                              ["network: give either architecture or file"]),
    "neither": ({"network": {}}, ["network: give either architecture or file"]),
    "architecture without weights": ({"network": {"architecture": "resnet18"}},
                                     ["network: an architecture needs weights"]),
    "file with weights": ({"network": {"file": "net.pt", "weights": "w.pth"}}, ["network: ", "its own weights"]),
    "stages of logits": ({"network": {"architecture": "a", "weights": "w", "stages": 2}},
                         ["network: ", "leave out stages"]),
    "no stage": ({"network": {"architecture": "a", "weights": "w", "features": "score", "stages": 0}},
                 ["network.stages: ", "found 0"]),
    "score and a head": ({"network": {"architecture": "a", "weights": "w", "features": "score"},
                          "head": {"file": "h.safetensors"}}, ["leave out head"]),
    "file with statistics": ({"network": {"file": "net.pt", "features": "statistics"}}, ["network: ", "leave out"]),
    "classes": ({"network": {"file": "net.pt", "classes": 0}}, ["network.classes: ", "found 0"]),
    "head of two": ({"head": {"train": "train.py", "file": "head.safetensors"}}, ["head: give either train or file"]),
    "head of none": ({"head": {}}, ["head: give either train or file"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_field_and_value_are_named(tmp_path: Path, case: str) -> None:
    added, words = WRONG[case]
    text = refused(tmp_path, {**SMALLEST, **added})
    assert all(word in text for word in words), text


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    text = refused(tmp_path, {"name": "a b", "runtime": "cuda", "input": {"size": 4}})
    assert all(f"{field}: " in text for field in ("name", "runtime", "input.size", "network"))


@pytest.mark.parametrize("text", ["name: [", "\tname: x", "name: a\nname\n", "{",
                                  "!!python/object/apply:os.system [true]"])
def test_what_is_no_yaml(tmp_path: Path, text: str) -> None:
    assert "cannot read the model's description" in refused(tmp_path, text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "just text", "- a\n- b\n", "5"])
def test_what_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert "a model.yaml holds name, network" in refused(tmp_path, text)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ArtifactError, match="cannot read the model's description"):
        read_spec(tmp_path)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"a model is a folder with a model\.yaml"):
        read_spec(tmp_path)
