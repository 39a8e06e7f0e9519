"""A worker claims a slot of plan.json, pins itself, sets its threads, and reports what it holds.

The plan is found through TSCPU_PLAN. A slot is held by a lock on a file, which the kernel drops when the process
dies, however it dies; so the worker that replaces a killed one finds its slot free. `configs.planning` decides the
slots; nothing is decided here but which of them is still free.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)
PLAN_VARIABLE = "TSCPU_PLAN"

_held: list[int] = []  # file descriptors of the claimed slot: kept open, and locked, until the process ends


@dataclass(frozen=True)
class Place:
    """Where this worker stands.

    Attributes:
        slot: index among the model's slots, or None without a plan.
        cpus: CPU ids it may run on.
        threads: intra-op threads.
        source: in words, where this came from.
        runtime: the one that the plan chose, or None without a plan.
    """

    pid: int
    model: str
    slot: int | None
    cpus: tuple[int, ...]
    threads: int
    interop_threads: int
    source: str
    runtime: str | None = None


def take_place(model: str) -> Place:
    """Claims a slot for a worker of this model, pins every thread of the process and sets torch's threads."""
    plan_path = os.environ.get(PLAN_VARIABLE) or None  # an empty value unsets it
    entry = _plan_entry(Path(plan_path), model) if plan_path else None
    if plan_path is None or entry is None:
        place = _without_plan(model, "no plan: TSCPU_PLAN is not set" if plan_path is None
                              else f"{plan_path} has no model {model!r}")
        _set_threads(place.threads)
    else:
        run_dir = Path(plan_path).parent
        place = _claim(entry, run_dir / "slots", model)
        pin(place.cpus)
        _set_threads(place.threads)
        _report(place, run_dir / "workers")
    logger.info("placement: model=%s pid=%d slot=%s cpus=%s threads=%d (%s)", model, place.pid,
                "none" if place.slot is None else place.slot, ",".join(map(str, place.cpus)), place.threads,
                place.source)
    return place


def pin(cpus: tuple[int, ...]) -> None:
    """Binds every thread of this process to these CPUs; threads started later inherit it from their creator.

    Call it again after warm-up: an OpenMP runtime that was told to bind its own threads (GOMP_CPU_AFFINITY,
    KMP_AFFINITY) does so when it starts them.
    """
    for entry in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread ended meanwhile
            os.sched_setaffinity(int(entry.name), cpus)


def _plan_entry(path: Path, model: str) -> dict[str, Any] | None:
    models: list[dict[str, Any]] = json.loads(path.read_text())["models"]
    return next((entry for entry in models if entry["name"] == model), None)


def _claim(entry: dict[str, Any], locks: Path, model: str) -> Place:
    locks.mkdir(parents=True, exist_ok=True)
    slots = [tuple(sorted(slot["cpus"])) for slot in entry["slots"]]
    now = tuple(sorted(os.sched_getaffinity(0)))
    # the slot that a launcher has already pinned this process to comes first
    order = sorted(range(len(slots)), key=lambda index: (slots[index] != now, index))
    for index in order:
        if _lock(locks / f"{model}.{index}.lock"):
            source = f"slot {index} of {len(slots)} in the plan"
            if slots[index] == now:
                source += ", already pinned there"
            return _place(entry, model, index, slots[index], source)
    index = os.getpid() % len(slots)
    return _place(entry, model, index, slots[index],
                  f"all {len(slots)} slots of the plan are taken: shares slot {index} with another worker")


def _place(entry: dict[str, Any], model: str, index: int, cpus: tuple[int, ...], source: str) -> Place:
    return Place(os.getpid(), model, index, cpus, int(entry["threads"]), 1, source, entry.get("runtime"))


def _lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


def _without_plan(model: str, why: str) -> Place:
    """One thread unless the user said otherwise: nothing here knows how many workers share these CPUs."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    said = re.match(r"\s*0*([1-9][0-9]*)", os.environ.get("OMP_NUM_THREADS", ""))  # "4,2" is a list for nested teams
    threads = min(int(said[1]), len(cpus)) if said else 1
    source = f"{why}; own affinity, " + ("threads from OMP_NUM_THREADS" if said else "one thread")
    return Place(os.getpid(), model, None, cpus, threads, 1, source)


def _set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError:  # a library has already started the inter-op pool; nothing of ours uses it
            logger.debug("inter-op threads are already started")


def _report(place: Place, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{place.pid}.json"
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(place)) + "\n")
    temporary.replace(target)
