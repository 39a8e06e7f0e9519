"""What a plan is: the contract between the pod and its workers, written as plan.json.

Only data lives here. `planning` decides it, `rendering` writes it, `serving.audit` checks the workers
against it, and inside a worker `handlers.placement` reads the JSON itself, since an archive carries no `configs`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.errors import SettingsError

FORMAT = 1
_AGAIN = f"this version reads format {FORMAT}: write the plan again with `tscpu config`"


@dataclass(frozen=True)
class Reason:
    """One decision: the number, and a sentence for how it came about."""

    subject: str
    value: str
    why: str


class Reasons:
    """Collects one sentence for one decision."""

    def __init__(self) -> None:
        self.all: list[Reason] = []

    def say(self, subject: str, value: object, why: str) -> None:
        self.all.append(Reason(subject, str(value), why))


@dataclass(frozen=True)
class Pod:
    """What the kernel allows, and where that was read.

    Attributes:
        cpu_limit: CPUs of the quota, or None.
        allowed_cpus: CPU ids that this process may run on.
        physical_cores: distinct physical cores among them.
        sockets, nodes: how many of each the allowed CPUs touch (nodes is 0 without NUMA information).
        memory_limit: bytes, or None. pids_limit: tasks, or None.
        cpu_stat: file with the throttling counters of the quota; empty without one.
    """

    cpu_limit: float | None
    cpu_limit_source: str
    allowed_cpus: tuple[int, ...]
    allowed_source: str
    physical_cores: int
    sockets: int
    nodes: int
    memory_limit: int | None
    memory_source: str
    pids_limit: int | None
    cpu_model: str
    cpu_stat: str = ""


@dataclass(frozen=True)
class Slot:
    """Where one worker stands: CPU ids (one hardware thread a physical core, unless shared), socket and NUMA node."""

    cpus: tuple[int, ...]
    socket: int
    node: int | None


@dataclass(frozen=True)
class ModelPlan:
    """One model of the pod. Times in seconds, except the batch delay in milliseconds; memory in bytes."""

    name: str
    version: str
    archive: str
    runtime: str
    workers: int
    threads: int
    batch_size: int
    max_batch_delay_ms: int
    response_timeout_s: int
    startup_timeout_s: int
    resident_bytes: int
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Plan:
    """One pod start: written beside config.properties.

    Attributes:
        placement: "exclusive" (a worker owns the cores of its slot) or "shared" (a worker is bound to one
            socket's allowed CPUs and the quota limits it).
        budget: threads that all workers together may run.
        launcher: whether TorchServe's CPU launcher pins (cpu_launcher_enable); otherwise the workers pin themselves.
        spin: whether waiting threads may spin (never under a quota).
        jvm_cpus: what the JVM is told to count.
        jvm_heap_mb: its -Xmx.
    """

    pod: Pod
    torchserve_version: str
    placement: str
    budget: int
    launcher: bool
    launcher_args: str
    ipex: bool
    spin: bool
    jvm_cpus: int
    jvm_heap_mb: int
    models: tuple[ModelPlan, ...]
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plan.json holds it."""
        return {"format": FORMAT, **asdict(self)}

    def model(self, name: str) -> ModelPlan:
        """The plan of one model.

        Raises:
            SettingsError: no such model in this plan.
        """
        for model in self.models:
            if model.name == name:
                return model
        raise SettingsError(f"the plan has no model {name!r}", why="it has " + ", ".join(m.name for m in self.models))


def read_plan(path: Path) -> Plan:
    """Reads a plan.json.

    Raises:
        SettingsError: missing, not JSON, or of another format.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError("cannot read the plan", where=str(path), why=str(error),
                            remedy="start the server with `tscpu serve`, or write one with `tscpu config`") from error
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise SettingsError("the plan has another format", where=str(path), why=f"format {found!r}", remedy=_AGAIN)
    try:
        return _plan(data)
    except (AttributeError, KeyError, TypeError) as error:
        raise SettingsError("the plan is incomplete", where=str(path), why=str(error), remedy=_AGAIN) from error


def _plan(data: dict[str, Any]) -> Plan:
    """The inverse of Plan.to_dict."""
    fields = {key: value for key, value in data.items() if key not in ("format", "pod", "models", "reasons")}
    pod = Pod(**{**data["pod"], "allowed_cpus": tuple(data["pod"]["allowed_cpus"])})
    models = tuple(
        ModelPlan(**{**model, "slots": tuple(Slot(**{**slot, "cpus": tuple(slot["cpus"])}) for slot in model["slots"])})
        for model in data["models"])
    reasons = tuple(Reason(**reason) for reason in data["reasons"])
    return Plan(pod=pod, models=models, reasons=reasons, **fields)
