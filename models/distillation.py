"""A student learns: linear probe, then the whole network by gradient descent, with checkpoints.

Everything random in a step comes from the seed and the step's number, so a run that was killed and resumed ends where
an undisturbed one does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from handlers.errors import ArtifactError
from models.lessons import Lessons
from models.losses import LossOptions, class_loss, score_loss
from models.students import Doubles, Student, ridge

Progress = Callable[[str, int, int], None]
CHECKPOINT_SECONDS = 30.0
_RAMP_STEPS = 50  # over which the learning rate rises
_PROBE_BATCH = 16


@dataclass(frozen=True)
class Training:
    """How a student learns.

    Attributes:
        learning_rate: None takes 1e-4 for pretrained weights and 1e-3 for random ones.
        frozen: share of all steps in which only the head learns, after the probe.
        averaging: of the weights over the last steps: the average is what is kept. 0 keeps the last ones.
        mirror: whether windows are mirrored at random. Nothing is ever resized or rotated, which would hide or add
            damage and cost small inputs their detail.
    """

    loss: LossOptions = field(default_factory=LossOptions)
    epochs: int = 4
    batch: int = 32
    learning_rate: float | None = None
    weight_decay: float = 0.01
    frozen: float = 0.05
    averaging: float = 0.99
    mirror: bool = True
    seed: int = 0


def train(student: Student, lessons: Lessons, training: Training, checkpoint: Path, progress: Progress,
          what: str = "training") -> dict[str, Any]:
    """Trains a student in place; it is in eval mode afterwards.

    Args:
        checkpoint: written every half minute and found again by a run of the same student, lessons and options; another
            run's is ignored. It stays, complete, so that calling again costs nothing.

    Returns:
        What is recorded: the probe's strength, steps, the mean loss of each epoch, seconds.

    Raises:
        ArtifactError: nothing to learn from, fewer photos than a batch, or the loss is no longer a number.
    """
    _check(lessons, training, student)
    network = student.network
    key = _key(student, lessons, training)
    optimizer = _optimizer(network, training.weight_decay)
    saved = _read(checkpoint, key)
    if saved is None:
        strength = probe(student, lessons, training, progress, what)
        average = {name: tensor.clone() for name, tensor in _floats(network)}
        state: dict[str, Any] = {"step": 0, "losses": [], "sum": 0.0, "seconds": 0.0, "probe": strength}
    else:
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        average, state = saved["average"], saved["state"]
    steps = len(lessons) // training.batch
    total = steps * training.epochs
    written = monotonic()

    def write() -> None:
        nonlocal written
        now = monotonic()
        state["seconds"] += now - written
        written = now
        _write(checkpoint, {"key": key, "state": state, "network": network.state_dict(), "average": average,
                            "optimizer": optimizer.state_dict()})

    rate = training.learning_rate or (1e-4 if student.pretrained else 1e-3)
    # batch norm of a pretrained network keeps its statistics: batches of this size know less than ImageNet
    network.train(not student.pretrained)
    loss_of = class_loss if student.classes else score_loss
    while state["step"] < total:
        step = state["step"]
        epoch, position = divmod(step, steps)
        order = np.random.default_rng([training.seed, epoch]).permutation(len(lessons))
        chosen = np.sort(order[position * training.batch:(position + 1) * training.batch])
        frozen = student.pretrained and student.head is not None and step < training.frozen * total
        for group in optimizer.param_groups:
            group["lr"] = rate * _schedule(step, total)
        torch.manual_seed(training.seed * 1_000_003 + step)  # dropout and its like
        images = _normalised(_windows(lessons, chosen, student.design.size, training, step), student)
        outputs = _outputs(student, images, frozen)
        index = torch.from_numpy(chosen)
        teacher, labels = (None if each is None else each[index] for each in (lessons.teacher, lessons.labels))
        loss = loss_of(outputs, teacher, labels, training.loss)
        if not math.isfinite(loss.item()):
            raise ArtifactError("the loss is no longer a number", where=f"step {step} of {total}",
                                remedy="a smaller --learning-rate")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        keep = min(training.averaging, (step + 1) / (step + 10)) if training.averaging else 0.0
        with torch.no_grad():
            for name, tensor in _floats(network):
                average[name].lerp_(tensor, 1.0 - keep)
        state["sum"] += loss.item()
        state["step"] += 1
        if state["step"] % steps == 0:
            state["losses"].append(round(state["sum"] / steps, 5))
            state["sum"] = 0.0
        if monotonic() - written > CHECKPOINT_SECONDS or state["step"] == total:
            write()
        progress(what, state["step"], total)
    network.load_state_dict(average, strict=False)
    network.eval().requires_grad_(False)
    return {"probe_strength": state["probe"], "steps": total, "losses": state["losses"],
            "seconds": round(state["seconds"], 1)}


def probe(student: Student, lessons: Lessons, training: Training, progress: Progress, what: str) -> float | None:
    """Fits the student's last layer alone, in closed form, where it has not learnt anything yet: a warm start, without
    which the first steps would tear up what the backbone knows. Returns its strength; None if there was nothing to do.
    """
    if student.head is None or not student.fresh_head or not student.pretrained:
        return None
    rows = []
    chosen = np.arange(len(lessons))
    student.network.eval()
    with torch.inference_mode():
        for start in range(0, len(chosen), _PROBE_BATCH):
            progress(f"{what}: linear probe", start, len(chosen))
            part = chosen[start:start + _PROBE_BATCH]
            # windows of no step's, but as random
            images = _windows(lessons, part, student.design.size, training, -1 - start)
            rows.append(student.features(_normalised(images, student)).double().numpy())
    progress(f"{what}: linear probe", len(chosen), len(chosen))
    fitted = ridge(np.concatenate(rows), probe_targets(lessons, training, student.classes), lessons.groups)
    student.set_head(*fitted[:4])
    return fitted[4]


def probe_targets(lessons: Lessons, training: Training, classes: int) -> Doubles:
    """What the probe is drawn towards, [N, outputs]: scores of teacher and label by their shares; the teacher's
    centred logits, or the labels as −1 and 1."""
    teacher, labels = lessons.teacher, lessons.labels
    if classes:
        if teacher is not None:
            logits = teacher.double()
            return np.asarray((logits - logits.mean(1, keepdim=True)).numpy())
        assert labels is not None
        return np.asarray(nn.functional.one_hot(labels, classes).double().mul(2.0).sub(1.0).numpy())
    if teacher is None or labels is None:
        return np.asarray((labels if teacher is None else teacher).double().numpy())[:, None]  # type: ignore[union-attr]
    share = training.loss.label_share
    return np.asarray((share * labels.double() + (1.0 - share) * teacher.double()).numpy())[:, None]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Intra-op threads while it trains; OpenMP's barriers cost most where there are more threads than cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check(lessons: Lessons, training: Training, student: Student) -> None:
    if lessons.teacher is None and lessons.labels is None:
        raise ArtifactError("there is nothing to learn from", why="neither a teacher's answers nor labels")
    if training.loss.name == "kd" and not student.classes:
        raise ArtifactError("kd compares probabilities of classes, and a scorer has none", where="--loss kd",
                            remedy="--loss dist or mse")
    if len(lessons) < training.batch:
        raise ArtifactError("there are fewer photos than one batch holds", where="--data",
                            why=f"{len(lessons)} photos to learn from, batches of {training.batch}",
                            remedy="more photos, or a smaller --batch")


def _windows(lessons: Lessons, chosen: NDArray[np.int64], size: int, training: Training, step: int) -> torch.Tensor:
    """Random windows of the canvases, mirrored at random: uint8 [N, size, size, 3]."""
    rng = np.random.default_rng([training.seed, 1, step & 0xFFFFFFFF])
    room = lessons.canvases.shape[1] - size
    places = rng.integers(0, room + 1, (len(chosen), 2))
    mirrored = rng.random(len(chosen)) < 0.5
    found = np.empty((len(chosen), size, size, 3), np.uint8)
    for row, (index, (top, left)) in enumerate(zip(chosen, places, strict=True)):
        window = lessons.canvases[index, top:top + size, left:left + size]
        found[row] = window[:, ::-1] if training.mirror and mirrored[row] else window
    return torch.from_numpy(found)


def _normalised(windows: torch.Tensor, student: Student) -> torch.Tensor:
    """uint8 [N, S, S, 3] → float32 [N, 3, S, S], channels-last in memory."""
    mean, std = torch.tensor(student.mean), torch.tensor(student.std)
    return ((windows.float() / 255.0 - mean) / std).permute(0, 3, 1, 2)


def _outputs(student: Student, images: torch.Tensor, frozen: bool) -> torch.Tensor:
    if frozen:
        with torch.no_grad():
            features = student.features(images)
        outputs = student.from_features(features)
    else:
        outputs = student.network(images)
    return outputs if student.classes else outputs.reshape(-1)


def _optimizer(network: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Weights decay; biases and batch norm's scales do not. The learning rate is each step's."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [{"params": [each for each in parameters if each.dim() > 1], "weight_decay": weight_decay},
         {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0}])


def _schedule(step: int, total: int) -> float:
    """A short rise, then half a cosine down to nothing."""
    return min(1.0, (step + 1) / _RAMP_STEPS) * 0.5 * (1.0 + math.cos(math.pi * step / total))


def _floats(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            yield name, tensor


def _key(student: Student, lessons: Lessons, training: Training) -> str:
    """Of everything that the result depends on."""
    state = hashlib.sha256(repr((student.design, student.weights, training, lessons.canvases.shape,
                                 torch.get_num_threads())).encode())
    for tensor in student.network.state_dict().values():
        state.update(tensor.contiguous().numpy().tobytes())
    for values in (lessons.teacher, lessons.labels):
        state.update(b"-" if values is None else values.numpy().tobytes())
    state.update(np.ascontiguousarray(lessons.canvases[:: max(1, len(lessons) // 64)]).tobytes())
    return state.hexdigest()


def _read(path: Path, key: str) -> dict[str, Any] | None:
    """A checkpoint of the same run, or None. Nothing in it is executed."""
    if not path.is_file():
        return None
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises what its restricted reader stumbles over; a damaged one costs a fresh start
        return None
    return saved if saved.get("key") == key else None


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    torch.save(content, temporary)
    temporary.replace(path)
