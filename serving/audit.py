"""Where each worker really stands, against the plan: from the management API's pids and /proc, not from its own word.

Only judging lives here: each worker against its own slot; `crowding` judges them against each other. `processes` reads
/proc, and commands print the rows. What a worker reports of itself (its torch threads) is passed on for display, and
counts only where it speaks against the worker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from configs.plan import ModelPlan, Plan
from configs.topology import Topology
from serving.client import Client, ModelStatus, UnknownModelError, WorkerStatus
from serving.crowding import RESTART, Complaint, Standing, crowding
from serving.processes import PROC, format_cpus, threads

Verdict = Literal["OK", "MISPLACED", "ACROSS SOCKETS", "SMT SIBLINGS", "OVERSUBSCRIBED", "TOO MANY THREADS",
                  "NOT READY", "MISSING"]
# A thread computes if it has had this share of the CPU time of the worker's busiest one, and this many clock ticks:
# more than the thread that reads the socket or the one that prints, less than any member of an OpenMP team.
COMPUTING_SHARE, COMPUTING_TICKS = 0.05, 20


@dataclass(frozen=True)
class WorkerRow:
    """One worker, there or missing.

    Attributes:
        worker: TorchServe's id; empty when missing.
        pid: None when missing or not started.
        status: TorchServe's word; empty when missing.
        cpus: CPU ids that any of its threads may run on, sorted.
        threads_differ: whether its threads have different masks.
        tasks: its threads of every kind.
        computing: those of them that have had a share of its CPU time.
        torch_threads: intra-op threads as the worker reports them, or None.
        wanted: CPU ids of the slot it stands on or should stand on; empty where there is no plan for it.
        reason: why the verdict is what it is, in a few words.
        remedy: what to do about it; empty when OK.
    """

    model: str
    worker: str
    pid: int | None
    status: str
    cpus: tuple[int, ...]
    threads_differ: bool
    tasks: int
    computing: int
    torch_threads: int | None
    wanted: tuple[int, ...]
    verdict: Verdict
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Audit:
    """All workers of a server, in the order of the plan."""

    rows: tuple[WorkerRow, ...]

    @property
    def clean(self) -> bool:
        """Whether every planned worker is there, ready, and stands where the plan wants it."""
        return all(row.verdict == "OK" for row in self.rows)


@dataclass(frozen=True)
class _Seen:
    """What /proc shows of one listed worker."""

    status: WorkerStatus
    cpus: tuple[int, ...]
    threads_differ: bool
    tasks: int
    computing: int


def audit(plan: Plan, source: Client | Sequence[ModelStatus], proc_root: Path = PROC, run_dir: Path | None = None,
          topology: Topology | None = None) -> Audit:
    """Looks at every worker.

    Args:
        source: TorchServe's management API, or its answers.
        proc_root: /proc of the pid namespace that TorchServe runs in.
        run_dir: where workers leave their own reports (workers/PID.json).
        topology: the node's; without it every CPU is taken for a core of its own, on one socket.

    Raises:
        ServerError: TorchServe cannot be asked.
    """
    statuses = {status.name: status for status in (_ask(source) if isinstance(source, Client) else source)}
    rows: list[WorkerRow] = []
    for model in plan.models:
        rows += _model_rows(plan, model, statuses.pop(model.name, None), proc_root, run_dir)
    for status in statuses.values():
        rows += _unplanned_rows(status, proc_root, run_dir)
    return Audit(_against_each_other(plan, rows, topology))


def _against_each_other(plan: Plan, rows: Sequence[WorkerRow], topology: Topology | None) -> tuple[WorkerRow, ...]:
    threads_of = {model.name: model.threads for model in plan.models}
    left = {model.name: model.workers for model in plan.models}
    standing = []
    for row in rows:
        planned = left.get(row.model, 0) > 0
        left[row.model] = left.get(row.model, 0) - 1
        if row.pid is None or row.verdict in ("NOT READY", "MISSING"):
            continue
        reported = row.torch_threads or 0
        standing.append(Standing(row.model, row.pid, row.cpus, threads_of.get(row.model, 0),
                                 max(row.computing, reported), planned, on_slot=row.verdict == "OK"))
    complaints = crowding(plan, standing, topology)
    return tuple(_with(row, complaints.get(row.pid or 0, [])) for row in rows)


def _with(row: WorkerRow, complaints: Sequence[Complaint]) -> WorkerRow:
    """The row with what the others make of it. That a misplaced worker shares somebody's core is no second fault."""
    if row.verdict == "MISPLACED":
        complaints = [each for each in complaints if each.verdict != "OVERSUBSCRIBED"]
    if not complaints:
        return row
    reasons = [row.reason] * (row.verdict == "MISPLACED") + [each.reason for each in complaints]
    return replace(row, verdict=complaints[0].verdict, reason="; ".join(reasons), remedy=complaints[0].remedy)


def _ask(client: Client) -> list[ModelStatus]:
    found = []
    for name in client.models():
        try:
            found.append(client.describe(name))
        except UnknownModelError:  # unregistered between the two calls
            continue
    return found


def _model_rows(plan: Plan, model: ModelPlan, status: ModelStatus | None, root: Path,
                run_dir: Path | None) -> list[WorkerRow]:
    seen = [_look(worker, root) for worker in status.workers] if status is not None else []
    judge = _exclusive if plan.placement == "exclusive" else _shared
    verdicts, free = judge(model, [each for each in seen if each.tasks])
    rows = []
    for each in seen:
        if each.status.ready and each.status.id in verdicts:
            verdict, wanted, reason = verdicts[each.status.id]
            remedy = "" if verdict == "OK" else RESTART.format(pid=each.status.pid)
        else:
            verdict, reason, remedy = _absence(each)
            wanted = verdicts[each.status.id][1] if each.status.id in verdicts else free.pop(0) if free else ()
        rows.append(_row(model.name, each, run_dir, wanted, verdict, reason, remedy))
    for index in range(len(seen), model.workers):
        why = f"worker {index + 1} of {model.workers}" if status is not None else "TorchServe does not have this model"
        rows.append(WorkerRow(model.name, "", None, "", (), False, 0, 0, None, free.pop(0) if free else (), "MISSING",
                              why, "see TorchServe's log, or scale the model up" if status is not None else
                              "look for \"Failed to load model\" in TorchServe's log"))
    return rows


_Verdicts = dict[str, tuple[Verdict, tuple[int, ...], str]]  # by worker id: verdict, wanted CPUs, reason


def _exclusive(model: ModelPlan, workers: Sequence[_Seen]) -> tuple[_Verdicts, list[tuple[int, ...]]]:
    """Each worker exactly on a slot of its own; and the slots that nobody stands on."""
    slots = Counter(_slots(model))
    taken = Counter(each.cpus for each in workers if each.cpus in slots)
    # slots may coincide, when there are more workers than cores: then as many may stand there as slots do
    free = list((slots - taken).elements())
    places = free.copy()
    first: dict[tuple[int, ...], list[int]] = {}
    verdicts: _Verdicts = {}
    for each in workers:
        holders = first.setdefault(each.cpus, [])
        holders.append(each.status.pid)
        on = f"on {format_cpus(each.cpus)}"
        if each.cpus not in slots:
            wanted = places.pop(0) if places else _slots(model)[0]
            verdicts[each.status.id] = "MISPLACED", wanted, _mismatch(each, model, wanted)
        elif len(holders) <= slots[each.cpus]:
            verdicts[each.status.id] = "OK", each.cpus, f"{on}, as planned"
        elif free:
            wanted = places.pop(0) if places else free[0]
            verdicts[each.status.id] = "MISPLACED", wanted, (f"shares the slot {format_cpus(each.cpus)} with pid "
                                                             f"{holders[0]}, while {format_cpus(wanted)} is free")
        else:
            verdicts[each.status.id] = "OK", each.cpus, f"{on}; shares the slot, since none is free"
    return verdicts, places


def _shared(model: ModelPlan, workers: Sequence[_Seen]) -> tuple[_Verdicts, list[tuple[int, ...]]]:
    """Each worker within one slot; slots are no places of one worker here, so none is free or taken."""
    slots = _slots(model)
    verdicts: _Verdicts = {}
    for each in workers:
        within = next((cpus for cpus in slots if set(each.cpus) <= set(cpus)), None)
        if within is not None:
            verdicts[each.status.id] = "OK", within, f"within {format_cpus(within)}, as planned"
        else:
            verdicts[each.status.id] = "MISPLACED", slots[0], _mismatch(each, model, slots[0])
    return verdicts, slots[len(workers):]


def _slots(model: ModelPlan) -> list[tuple[int, ...]]:
    return [tuple(sorted(slot.cpus)) for slot in model.slots]


def _mismatch(each: _Seen, model: ModelPlan, wanted: tuple[int, ...]) -> str:
    choices = dict.fromkeys(map(format_cpus, _slots(model)))
    planned = format_cpus(wanted) if len(choices) == 1 else "one of " + " | ".join(choices)
    differ = ", and not all of its threads on the same" if each.threads_differ else ""
    return f"may run on {format_cpus(each.cpus)}{differ}; the plan has {planned}"


def _absence(each: _Seen) -> tuple[Verdict, str, str]:
    """What is to be said of a worker that is not there to be judged."""
    if not each.status.ready:
        return "NOT READY", f"TorchServe calls it {each.status.status}", "wait; if it stays so, see TorchServe's log"
    return ("NOT READY", f"no process {each.status.pid} here",
            "it has just ended, or TorchServe runs in another pid namespace: look from inside its container")


def _unplanned_rows(status: ModelStatus, root: Path, run_dir: Path | None) -> list[WorkerRow]:
    return [_row(status.name, _look(worker, root), run_dir, (), "MISPLACED",
                 "the plan has no such model: it takes CPUs from those that are planned",
                 "add it to serving.yaml and start again, or unregister it") for worker in status.workers]


def _row(model: str, each: _Seen, run_dir: Path | None, wanted: tuple[int, ...], verdict: Verdict, reason: str,
         remedy: str) -> WorkerRow:
    pid = each.status.pid if each.status.pid > 0 else None
    return WorkerRow(model, each.status.id, pid, each.status.status, each.cpus, each.threads_differ, each.tasks,
                     each.computing, _torch_threads(model, pid, run_dir), wanted, verdict, reason, remedy)


def _look(worker: WorkerStatus, root: Path) -> _Seen:
    found = threads(worker.pid, root) if worker.pid > 0 else ()
    masks = {thread.cpus for thread in found}
    least = max(COMPUTING_TICKS, COMPUTING_SHARE * max((thread.cpu_ticks for thread in found), default=0))
    return _Seen(worker, tuple(sorted({cpu for mask in masks for cpu in mask})), len(masks) > 1, len(found),
                 sum(thread.cpu_ticks >= least for thread in found))


def _torch_threads(model: str, pid: int | None, run_dir: Path | None) -> int | None:
    """What the worker reports, if it is of this model: pids come back, and reports of ended workers stay behind."""
    if pid is None or run_dir is None:
        return None
    try:
        report = json.loads((run_dir / "workers" / f"{pid}.json").read_text())
        return int(report["threads"]) if report["model"] == model else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
