"""Students really learn here, on scikit-learn's digits: a teacher helps, and a kill changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from handlers.errors import ArtifactError
from models import distillation
from models.distillation import Training, threads, train
from models.lessons import Lessons
from models.losses import LossOptions
from models.networks import ScoreNetwork
from models.students import Design, Student, ridge

HALF = (0.5, 0.5, 0.5)
LEARN, HELD_OUT = 400, 1000


def quiet(what: str, done: int, total: int) -> None:
    pass


def network(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, 10)).to(memory_format=torch.channels_last)


def student(width: int, seed: int) -> Student:
    return Student(Design(None, None, None, "digits", 8), network(width, seed), 10, "random", True, HALF, HALF)


def digits() -> tuple[np.ndarray, torch.Tensor]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    pixels = np.clip(data.images[order] * 15.9, 0, 255).astype(np.uint8)
    return np.repeat(pixels[..., None], 3, axis=3), torch.from_numpy(data.target[order]).long()


def lessons(pixels: np.ndarray, labels: torch.Tensor | None, teacher: torch.Tensor | None = None) -> Lessons:
    return Lessons(pixels, teacher, labels, np.arange(len(pixels)))


def logits(learner: Student, pixels: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return learner.network.eval()(distillation._normalised(torch.from_numpy(pixels), learner))


PLAIN = Training(epochs=30, mirror=False, learning_rate=3e-3)  # a mirrored digit is another one, or none


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lessons, np.ndarray, torch.Tensor]:
    """Digits to learn from, with the answers of a wider teacher that has seen more of them; and held-out ones."""
    pixels, labels = digits()
    seen = len(labels) - HELD_OUT
    with threads(1):
        teacher = student(24, 99)
        train(teacher, lessons(pixels[:seen], labels[:seen]), replace(PLAIN, epochs=25),
              tmp_path_factory.mktemp("teacher") / "checkpoint.pt", quiet)
    return (lessons(pixels[:LEARN], labels[:LEARN], logits(teacher, pixels[:LEARN]).clone()),
            pixels[seen:], labels[seen:])


def accuracy(learner: Student, pixels: np.ndarray, labels: torch.Tensor) -> float:
    return float((logits(learner, pixels).argmax(1) == labels).float().mean())


def test_a_student_with_a_teacher_is_at_least_as_accurate_as_without(
        data: tuple[Lessons, np.ndarray, torch.Tensor], tmp_path: Path) -> None:
    learn, pixels, labels = data
    means = {}
    with threads(1):
        for teacher in (True, False):
            found = []
            for seed in range(3):
                learner = student(4, seed)
                train(learner, learn if teacher else replace(learn, teacher=None), replace(PLAIN, seed=seed),
                      tmp_path / f"{teacher}-{seed}.pt", quiet)
                found.append(accuracy(learner, pixels, labels))
            means[teacher] = float(np.mean(found))
    assert means[False] > 0.75, means  # it has learnt without one too
    assert means[True] >= means[False], means


@pytest.mark.parametrize("name", ["kd", "mse"])
def test_other_losses_teach_as_well(name: str, data: tuple[Lessons, np.ndarray, torch.Tensor],
                                    tmp_path: Path) -> None:
    learn, pixels, labels = data
    learner = student(4, 0)
    with threads(1):
        train(learner, learn, replace(PLAIN, loss=LossOptions(name)), tmp_path / "checkpoint.pt", quiet)
    assert accuracy(learner, pixels, labels) > 0.75


def test_labels_are_not_needed(data: tuple[Lessons, np.ndarray, torch.Tensor], tmp_path: Path) -> None:
    learn, pixels, labels = data
    learner = student(4, 0)
    with threads(1):
        train(learner, replace(learn, labels=None), PLAIN, tmp_path / "checkpoint.pt", quiet)
    assert accuracy(learner, pixels, labels) > 0.75


def run_until_killed(path: Path, learn: Lessons) -> None:
    torch.set_num_threads(1)
    distillation.CHECKPOINT_SECONDS = 0.0
    train(student(4, 0), learn, replace(PLAIN, epochs=200), path, quiet)


def test_a_killed_run_ends_as_an_undisturbed_one(data: tuple[Lessons, np.ndarray, torch.Tensor],
                                                 tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, pixels, _ = data
    short = replace(PLAIN, epochs=4)
    path = tmp_path / "checkpoint.pt"

    class Killed(BaseException):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == total // 2:
            raise Killed

    with threads(1):
        undisturbed = student(4, 0)
        whole = train(undisturbed, learn, short, tmp_path / "other.pt", quiet)
        monkeypatch.setattr(distillation, "CHECKPOINT_SECONDS", 0.0)
        with pytest.raises(Killed):
            train(student(4, 0), learn, short, path, kill)
        resumed = student(4, 0)
        steps = []
        part = train(resumed, learn, short, path, lambda what, done, total: steps.append(done))
    assert steps[0] == whole["steps"] // 2 + 1
    assert part["losses"] == pytest.approx(whole["losses"], abs=1e-6)
    assert torch.allclose(logits(resumed, pixels), logits(undisturbed, pixels), atol=1e-3)


def test_a_sigkill_leaves_a_checkpoint_that_can_be_read(data: tuple[Lessons, np.ndarray, torch.Tensor],
                                                        tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=(path, data[0]))
    process.start()
    deadline = time.monotonic() + 60
    while not path.is_file() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # in the middle of something
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    saved = torch.load(path, weights_only=True)
    assert 0 < saved["state"]["step"] < 200 * (LEARN // 32)


def test_a_finished_run_is_not_repeated(data: tuple[Lessons, np.ndarray, torch.Tensor], tmp_path: Path) -> None:
    learn, pixels, _ = data
    short, path = replace(PLAIN, epochs=1), tmp_path / "checkpoint.pt"
    first, second = student(4, 0), student(4, 0)
    steps: list[int] = []
    with threads(1):
        train(first, learn, short, path, quiet)
        train(second, learn, short, path, lambda what, done, total: steps.append(done))
    assert steps == []
    assert torch.equal(logits(first, pixels), logits(second, pixels))


@pytest.mark.parametrize("change", [{"seed": 1}, {"loss": LossOptions("kd")}, {"epochs": 2}])
def test_another_runs_checkpoint_is_not_taken(change: dict[str, object], tmp_path: Path,
                                              data: tuple[Lessons, np.ndarray, torch.Tensor]) -> None:
    short, path, steps = replace(PLAIN, epochs=1), tmp_path / "checkpoint.pt", []
    with threads(1):
        train(student(4, 0), data[0], short, path, quiet)
        train(student(4, 0), data[0], replace(short, **change), path, lambda what, done, total: steps.append(done))  # type: ignore[arg-type]
    assert steps[0] == 1


def test_a_damaged_checkpoint_costs_a_fresh_start_and_nothing_else(
        data: tuple[Lessons, np.ndarray, torch.Tensor], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"half a checkpoint")
    with threads(1):
        assert train(student(4, 0), data[0], replace(PLAIN, epochs=1), path, quiet)["steps"] == LEARN // 32


def test_kd_for_scores_is_refused() -> None:
    scorer = Student(Design(None, None, None, "scorer", 8), nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), 0, "random",
                     True, HALF, HALF)
    few = Lessons(np.zeros((64, 8, 8, 3), np.uint8), torch.zeros(64), torch.zeros(64), np.arange(64))
    with pytest.raises(ArtifactError, match="a scorer has none"):
        train(scorer, few, Training(LossOptions("kd")), Path("never"), quiet)


def test_fewer_photos_than_a_batch_are_an_error() -> None:
    few = Lessons(np.zeros((8, 8, 8, 3), np.uint8), None, torch.zeros(8, dtype=torch.long), np.arange(8))
    with pytest.raises(ArtifactError, match="8 photos to learn from, batches of 32"):
        train(student(4, 0), few, Training(), Path("never"), quiet)


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_remedy(
        data: tuple[Lessons, np.ndarray, torch.Tensor], tmp_path: Path) -> None:
    teacher = data[0].teacher
    assert teacher is not None
    broken = replace(data[0], teacher=torch.full_like(teacher, float("nan")))
    with pytest.raises(ArtifactError, match="--learning-rate"):
        train(student(4, 0), broken, PLAIN, tmp_path / "checkpoint.pt", quiet)


class Means(nn.Module):
    """The three channels' means and deviations as features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)


def scorer() -> Student:
    return Student(Design("made_up", None, None, "", 8), ScoreNetwork(Means(), 6), 0, "package", True, HALF, HALF)


def bright(count: int, seed: int) -> tuple[np.ndarray, torch.Tensor]:
    """Pixels of random brightness, and a score that rises with it."""
    rng = np.random.default_rng(seed)
    level = rng.integers(20, 220, count)
    pixels = np.clip(level[:, None, None, None] + rng.normal(0, 10, (count, 8, 8, 3)), 0, 255).astype(np.uint8)
    return pixels, torch.from_numpy(level / 25.0).float()


def test_the_linear_probe_finds_what_is_linear_before_the_first_step() -> None:
    pixels, scores = bright(200, 0)
    learner = scorer()
    learn = Lessons(pixels, None, scores, np.arange(200))
    distillation.probe(learner, learn, Training(), quiet, "")
    found = logits(learner, bright(50, 1)[0])
    assert float((found - bright(50, 1)[1]).abs().mean()) < 0.1


def test_what_the_probe_finds_is_not_lost_in_training(tmp_path: Path) -> None:
    pixels, scores = bright(200, 0)
    learner = scorer()
    record = train(learner, Lessons(pixels, scores, scores, np.arange(200)), Training(epochs=2),
                   tmp_path / "checkpoint.pt", quiet)
    assert record["probe_strength"] is not None
    assert float((logits(learner, bright(50, 1)[0]) - bright(50, 1)[1]).abs().mean()) < 0.15


def test_windows_are_cut_from_the_canvas_and_never_resized() -> None:
    canvas = np.arange(12 * 12 * 3, dtype=np.uint8).reshape(1, 12, 12, 3)
    one = Lessons(np.repeat(canvas, 64, 0), None, None, np.arange(64))
    found = distillation._windows(one, np.arange(64), 8, Training(mirror=False), 0).numpy()
    places = {(top, left): canvas[0, top:top + 8, left:left + 8] for top in range(5) for left in range(5)}
    assert all(any(np.array_equal(window, place) for place in places.values()) for window in found)
    assert len({window.tobytes() for window in found}) > 10


def test_ridge_is_exact_on_what_is_linear_whatever_the_offset() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(1000.0, 1.0, (300, 4))
    y = (x - 1000.0) @ np.array([[1.0, 0.0], [2.0, 1.0], [0.0, -1.0], [0.5, 0.0]]) + 7.0
    centre, scale, weight, bias, strength = ridge(x, y, np.arange(300), strengths=(1e-6, 1e3))
    assert strength == 1e-6
    assert np.allclose((x - centre) / scale @ weight + bias, y, atol=1e-6)


def test_ridge_leaves_dead_features_alone() -> None:
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(0, 1, 100), 1e-4 + rng.normal(0, 1e-9, 100)]
    _, scale, weight, _, _ = ridge(x, x[:, :1], np.arange(100), strengths=(1.0,))
    assert scale[1] == 1.0 and abs(weight[1, 0]) < 1e-3
