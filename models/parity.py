"""Every built network against the eager fp32 network it was made of: how far apart, on which photo, and whether that
is within the model's tolerance.

Judging lives here. The photos come from `samples`, the files from `formats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from handlers.errors import ArtifactError
from handlers.runtimes import Network
from handlers.transforms import Preprocess
from models.samples import Sample
from models.spec import Tolerance

CONFIDENT_LEAD = 0.2  # of the most probable class over the second, from which on an answer must not change
RANDOM_TENSORS = 10
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """What the eager network answers.

    Attributes:
        batches: random float32 [N, 3, size, size], for batches of every kind; with their outputs.
        samples: photos.
        pixels: each of them as uint8 [1, 3, size, size].
        outputs: for the photos, [samples, …]; None where there are none.
    """

    batches: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    samples: Sequence[Sample]
    pixels: tuple[torch.Tensor, ...]
    outputs: torch.Tensor | None


def reference(network: torch.nn.Module, preprocess: Preprocess, samples: Sequence[Sample],
              batch_size: int) -> Reference:
    """Runs the eager network on random tensors in batches of 1, 2 and batch_size, and on the photos one by one."""
    size = preprocess.spec.size
    batches = []
    with torch.inference_mode():
        counts = sorted({1, 2, batch_size})
        counts += [1] * max(0, RANDOM_TENSORS - sum(counts))
        for seed, count in enumerate(counts):
            generator = torch.Generator().manual_seed(seed)
            batch = torch.randn(count, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
            batches.append((batch, network(batch)))
        pixels = tuple(preprocess.pixels(sample.image) for sample in samples)
        outputs = torch.cat([network(preprocess.normalise(each)) for each in pixels]) if pixels else None
    return Reference(tuple(batches), samples, pixels, outputs)


def compare(built: Network, expected: Reference, preprocess: Preprocess,
            groups: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The parity record of one runtime: of random tensors, which reach it as float32, and of photos, as they do when
    it serves.

    Raises:
        ArtifactError: it answers in another shape.
    """
    apart, scale = [], []
    with torch.inference_mode():
        for batch, wanted in expected.batches:
            found = built(batch)
            if found.shape != wanted.shape:
                raise ArtifactError("the built network answers in another shape", where=f"batch of {len(batch)}",
                                    why=f"{list(found.shape)}, and {list(wanted.shape)} is expected")
            apart.append(_largest(found, wanted))
            scale.append(float(wanted.abs().max()))
        ready = expected.pixels if built.pixels else map(preprocess.normalise, expected.pixels)
        outputs = torch.cat([built(each) for each in ready]) if expected.pixels else None
    largest_of_all = float(np.max(apart))  # not max(), which loses a NaN
    record: dict[str, Any] = {"random_tensors": {"images": sum(len(batch) for batch, _ in expected.batches),
                                                 "largest_difference": _round(largest_of_all),
                                                 "relative": _round(largest_of_all / max([*scale, 1e-6]))}}
    if outputs is None or expected.outputs is None:
        return record
    rows = (outputs - expected.outputs).double().abs().reshape(len(outputs), -1)
    worst, largest = int(rows.amax(1).argmax()), float(rows.max())
    record["photos"] = {
        "images": len(rows), "largest_difference": _round(largest), "mean_difference": _round(float(rows.mean())),
        "relative": _round(largest / max(float(expected.outputs.abs().max()), 1e-6)),
        "worst": expected.samples[worst].name}
    if rows.shape[1] == 1:
        record["scores"] = _scores(outputs, expected)
    elif outputs.dim() == 2:
        record["classes"] = _classes(outputs, expected, groups)
    return record


def beyond(record: dict[str, Any], tolerance: Tolerance, quantized: bool) -> list[str]:
    """What of a record is out of tolerance, each with by how much and for which photo; empty if nothing is.

    Not a comparison that fails for NaN: every value must show that it is within.
    """
    found = []
    if not quantized:
        for part in ("random_tensors", "photos"):
            if part in record and not record[part]["relative"] <= tolerance.fp32:
                where = f", for {record[part]['worst']}" if "worst" in record[part] else ""
                found.append(f"outputs differ by {record[part]['relative']:.1e} of the largest one{where}; "
                             f"{tolerance.fp32:.0e} is allowed")
        return found
    if "photos" not in record:
        return ["there are no photos to judge it on"]
    classes, scores = record.get("classes"), record.get("scores")
    if classes:
        checks = (("confident answers", classes["top1_confident"], tolerance.confident, "worst_confident"),
                  ("answers", classes["top1"], tolerance.top1, "worst"))
        found += [f"{100 * value:.1f} % of {what} are the same{_for(classes[worst])}; {100 * least:g} % is asked for"
                  for what, value, least, worst in checks if not value >= least]
    if scores:
        if not scores["mae"] <= tolerance.score_mae:
            found.append(f"scores move by {scores['mae']:.3f} on average, by {scores['largest']:.2f} for "
                         f"{scores['worst']}; {tolerance.score_mae:g} is allowed")
        if not scores["spearman"] >= tolerance.spearman:
            found.append(f"Spearman to the reference is {scores['spearman']:.4f}; {tolerance.spearman:g} is asked for")
        labels = scores.get("labels")
        if labels and not (labels["mae"] <= labels["reference_mae"] * (1 + tolerance.label_loss)
                           and labels["spearman"] >= labels["reference_spearman"] * (1 - tolerance.label_loss)):
            found.append(f"against the labels MAE goes from {labels['reference_mae']:.3f} to {labels['mae']:.3f}, "
                         f"Spearman from {labels['reference_spearman']:.3f} to {labels['spearman']:.3f}; "
                         f"{100 * tolerance.label_loss:g} % is allowed")
    if not classes and not scores and not record["photos"]["relative"] <= tolerance.other_int8:
        found.append(f"outputs differ by {record['photos']['relative']:.2g} of the largest one, for "
                     f"{record['photos']['worst']}; {tolerance.other_int8:g} is allowed")
    return found


def _for(photo: str) -> str:
    return f", not for {photo}" if photo else ""


def _scores(outputs: torch.Tensor, expected: Reference) -> dict[str, Any]:
    assert expected.outputs is not None
    found, wanted = (each.double().flatten().numpy() for each in (outputs, expected.outputs))
    apart = np.abs(found - wanted)
    record: dict[str, Any] = {"mae": _round(apart.mean()), "largest": _round(apart.max()),
                              "worst": expected.samples[int(apart.argmax())].name,
                              "spearman": _round(spearmanr(found, wanted)[0])}
    if all(sample.score is not None for sample in expected.samples):
        labels = np.array([sample.score for sample in expected.samples])
        record["labels"] = {
            "mae": _round(np.abs(found - labels).mean()), "reference_mae": _round(np.abs(wanted - labels).mean()),
            "spearman": _round(spearmanr(found, labels)[0]),
            "reference_spearman": _round(spearmanr(wanted, labels)[0])}
    return record


def _classes(outputs: torch.Tensor, expected: Reference, groups: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    assert expected.outputs is not None
    found, wanted = (each.double().softmax(1).numpy() for each in (outputs, expected.outputs))
    top = np.sort(wanted, axis=1)
    # argmax of NaN is an index like any other
    same = (found.argmax(1) == wanted.argmax(1)) & ~np.isnan(found).any(1)
    lead = top[:, -1] - top[:, -2]
    confident = lead > CONFIDENT_LEAD
    record: dict[str, Any] = {
        "top1": _round(same.mean()), "worst": _surest(~same, lead, expected),
        "confident_images": int(confident.sum()),
        "top1_confident": _round(same[confident].mean()) if confident.any() else 1.0,
        "worst_confident": _surest(~same & confident, lead, expected)}
    for name, members in groups.items():
        apart = np.abs(found[:, list(members)].sum(1) - wanted[:, list(members)].sum(1))
        record[f"{name}_probability"] = {"mean_error": _round(apart.mean()), "largest_error": _round(apart.max()),
                                         "worst": expected.samples[int(apart.argmax())].name}
    return record


def _surest(wrong: NDArray[np.bool_], lead: Doubles, expected: Reference) -> str:
    """Of the changed answers the one that the reference was surest of; "" if none changed."""
    return expected.samples[int(np.where(wrong, lead, -1.0).argmax())].name if wrong.any() else ""


def _largest(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).double().abs().max())


def _round(value: float) -> float:
    """Four significant digits: more would differ from CPU to CPU, and tell nobody anything."""
    return float(f"{float(value):.4g}")
