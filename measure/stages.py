"""CPU-milliseconds of a request, stage by stage: from two scrapes of TorchServe's metrics and /proc's CPU times.

The workers hand their counters over about once a second, all of them at once, so a stage's time is always divided by
the images of the same two scrapes; which second the scrape falls into does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

STAGES = ("decode", "preprocess", "infer", "postprocess")
_LINE = re.compile(r"^(\w+)\{([^}]*)\}\s+([0-9.eE+-]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Counters:
    """A scrape's stage counters, summed over models, levels and hosts.

    Attributes:
        cpu, wall: seconds by stage; `cpu` is empty where the handlers measure wall time only.
    """

    cpu: Mapping[str, float]
    wall: Mapping[str, float]
    images: float


def scrape(text: str) -> Counters:
    """The Prometheus text of TorchServe's metrics port → its stage counters."""
    cpu: dict[str, float] = {}
    wall: dict[str, float] = {}
    images = 0.0
    for line in text.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        name, value = found[1].removesuffix("_total"), float(found[3])
        stage = dict(_LABEL.findall(found[2])).get("Stage", "")
        if name == "StageCpuSeconds":
            cpu[stage] = cpu.get(stage, 0.0) + value
        elif name == "StageSeconds":
            wall[stage] = wall.get(stage, 0.0) + value
        elif name == "StageImages":
            images += value
    return Counters(cpu, wall, images)


def between(before: Counters, after: Counters) -> dict[str, float]:
    """Milliseconds an image by stage between two scrapes; empty if no image was counted. CPU time if it is known."""
    images = after.images - before.images
    if images <= 0:
        return {}
    first, last = (before.cpu, after.cpu) if after.cpu else (before.wall, after.wall)
    return {stage: 1000 * (last[stage] - first.get(stage, 0.0)) / images for stage in STAGES if stage in last}


@dataclass(frozen=True)
class Row:
    """One setup's line of the table, in CPU-milliseconds a request; None where nothing is known.

    Attributes:
        worker: all of the workers' CPU time; protocol, stages and unexplained add up to it.
        head: what the scorer's head costs: part of the graph, so it is the difference of two setups' infer. It is
            taken out of `infer`.
        other: supervisor, launcher wrappers, API servers.
    """

    setup: str
    jvm: float | None
    worker: float | None
    protocol: float | None
    decode: float | None
    preprocess: float | None
    infer: float | None
    head: float | None
    postprocess: float | None
    unexplained: float | None
    other: float | None
    client: float | None


def table(windows: Mapping[str, Sequence[Mapping[str, object]]]) -> list[Row]:
    """Medians over the valid windows of each setup.

    Args:
        windows: setup → its windows, as the record holds them.
    """
    protocol = _median(windows.get("noop", ()), "worker")
    rows = []
    for setup, own in windows.items():
        if not own:
            continue
        stages = {stage: _stage(own, stage) for stage in STAGES}
        worker, infer = _median(own, "worker"), stages["infer"]
        known = [value for value in stages.values() if value is not None]
        head = None
        name, _, runtime = setup.partition("/")
        # of no student: its backbone is its own, so the recognizer's infer says nothing of its head
        if name == "scorer" and infer is not None:
            plain = _stage(windows.get(f"food/{runtime}", ()), "infer")
            if plain is not None:
                head, infer = infer - plain, plain
        # whatever has stages is a worker of ours, but for those that have no server around them
        own_protocol = protocol if known and name != "in-process" else None
        # wall time includes the waits for a core: it explains no CPU time
        clocks = {window.get("stage_clock") for window in own}
        unexplained = worker - (own_protocol or 0.0) - sum(known) if known and worker and "wall" not in clocks else None
        rows.append(Row(setup, _median(own, "jvm"), worker, own_protocol, stages["decode"], stages["preprocess"], infer,
                        head, stages["postprocess"], unexplained, _median(own, "other"), _median(own, "client")))
    return rows


def _median(windows: Sequence[Mapping[str, object]], role: str) -> float | None:
    """CPU-milliseconds a request of a role: "jvm", "worker", "other", "client"."""
    values = []
    for window in windows:
        cpu, handled = window.get("cpu_seconds"), window.get("handled")
        if isinstance(cpu, dict) and isinstance(handled, int | float) and handled and role in cpu:
            values.append(1000 * float(cpu[role]) / handled)
    return median(values) if values else None


def _stage(windows: Sequence[Mapping[str, object]], stage: str) -> float | None:
    values = [float(stages[stage]) for window in windows
              if isinstance(stages := window.get("stages_ms"), dict) and stage in stages]
    return median(values) if values else None
