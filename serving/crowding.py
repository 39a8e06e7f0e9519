"""Workers against each other: more threads than cores, two of them on one physical core, one across sockets.

Only judging lives here, of what `audit` has seen. A pair that the plan itself puts on one CPU (more models than cores)
is not complained about; hardware threads of one core never are what a plan wants where cores are exclusive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from configs.plan import Plan
from configs.slots import sockets
from configs.topology import Topology
from serving.processes import format_cpus

EPSILON = 1e-9
RESTART = "end it with `kill {pid}`: TorchServe starts another, which claims a free slot"
SCALE_DOWN = "scale {model} back to {workers}: curl -X PUT 'http://127.0.0.1:8081/models/{model}?min_worker={workers}" \
             "&max_worker={workers}' (the management port)"
UNREGISTER = "add it to serving.yaml and start again, or unregister it"
PLAN_AGAIN = "the plan does not fit this machine: stop the server and start it here again"
FEWER_THREADS = "something in it sets its own thread count: let the plan do so (a handler's torch.set_num_threads, a " \
                "library's pool), then `kill {pid}`"


@dataclass(frozen=True)
class Standing:
    """One live worker.

    Attributes:
        cpus: CPU ids that any of its threads may run on.
        threads: as planned; 0 for a model outside the plan.
        computing: threads of it that compute, as seen.
        planned: whether it is one of as many workers as the plan has for its model.
        on_slot: whether it stands where the plan wants it.
    """

    model: str
    pid: int
    cpus: tuple[int, ...]
    threads: int
    computing: int
    planned: bool
    on_slot: bool

    @property
    def innocent(self) -> bool:
        """Whether a crowd on its cores is the others' doing."""
        return self.planned and self.on_slot


@dataclass(frozen=True)
class Complaint:
    """What is wrong with one worker beside the others, and what to do."""

    verdict: Literal["ACROSS SOCKETS", "SMT SIBLINGS", "OVERSUBSCRIBED", "TOO MANY THREADS"]
    reason: str
    remedy: str


class _Map:
    """Which physical core and which socket a CPU belongs to; an unknown CPU is a core of its own on socket 0."""

    def __init__(self, topology: Topology | None) -> None:
        self._core = {} if topology is None else {cpu.id: cpu.core for cpu in topology.cpus}
        groups = [] if topology is None else sockets(topology.physical_cores())
        self._socket = {core.core: index for index, group in enumerate(groups) for core in group}

    def cores(self, cpus: Sequence[int]) -> frozenset[int]:
        return frozenset(self._core.get(cpu, cpu) for cpu in cpus)

    def sockets(self, cpus: Sequence[int]) -> list[int]:
        return sorted({self._socket.get(core, 0) for core in self.cores(cpus)})


def crowding(plan: Plan, workers: Sequence[Standing], topology: Topology | None) -> dict[int, list[Complaint]]:
    """Complaints by pid, the gravest first.

    Args:
        topology: the node's; without it every CPU is taken for a core of its own.
    """
    where = _Map(topology)
    found: dict[int, list[Complaint]] = defaultdict(list)
    for each in workers:
        spans = where.sockets(each.cpus)
        if len(spans) > 1 and not each.on_slot:
            found[each.pid].append(Complaint("ACROSS SOCKETS", f"spans sockets {', '.join(map(str, spans))}",
                                             RESTART.format(pid=each.pid)))
    crowd = _on_cores if plan.placement == "exclusive" else _in_the_pod
    for pid, complaint in crowd(plan, workers, where):
        found[pid].append(complaint)
    for each in workers:
        if each.threads and each.computing > each.threads:
            found[each.pid].append(Complaint("TOO MANY THREADS", f"{each.computing} of its threads compute; the plan "
                                             f"has {each.threads}", FEWER_THREADS.format(pid=each.pid)))
    return dict(found)


def _on_cores(plan: Plan, workers: Sequence[Standing], where: _Map) -> list[tuple[int, Complaint]]:
    """A worker's threads count evenly for the cores it may run on; no core may have more than one, or than planned."""
    planned: dict[int, float] = defaultdict(float)
    for model in plan.models:
        for slot in model.slots:
            for cpu in slot.cpus:
                planned[cpu] += model.threads / len(slot.cpus)
    holders: dict[int, list[Standing]] = defaultdict(list)
    allowed: dict[int, float] = defaultdict(lambda: 1.0)
    for cpu, load in planned.items():
        for core in where.cores([cpu]):
            allowed[core] = max(allowed[core], load)
    for each in workers:
        for core in where.cores(each.cpus):
            holders[core].append(each)
    found: dict[int, Complaint] = {}
    for core, crowd in sorted(holders.items()):
        load = sum(_threads(each) / len(where.cores(each.cpus)) for each in crowd)
        if load <= allowed[core] + EPSILON:
            continue
        guilty = [each for each in crowd if not each.innocent] or crowd
        for each in guilty:
            others = [other for other in crowd if other is not each]
            found.setdefault(each.pid, _complaint(plan, each, others))
    return list(found.items())


def _complaint(plan: Plan, worker: Standing, others: Sequence[Standing]) -> Complaint:
    same = [other for other in others if set(other.cpus) & set(worker.cpus)]
    names = " and ".join(f"pid {other.pid} ({other.model})" for other in (same or others))
    remedy = PLAN_AGAIN if worker.innocent else _remedy(plan, worker)
    if not same and others:
        return Complaint("SMT SIBLINGS", f"on {format_cpus(worker.cpus)}: a hardware thread of the core that {names} "
                         "computes on", remedy)
    return Complaint("OVERSUBSCRIBED", f"shares its core with {names}" if others else
                     f"{_threads(worker)} threads on {format_cpus(worker.cpus)}", remedy)


def _in_the_pod(plan: Plan, workers: Sequence[Standing], where: _Map) -> list[tuple[int, Complaint]]:
    """Shared cores are nobody's: all threads together count against the budget, or against what is planned anyway."""
    total = sum(map(_threads, workers))
    allowed = max(plan.budget, sum(model.workers * model.threads for model in plan.models))
    if total <= allowed:
        return []
    why = f"the pod's workers have {total} threads for a budget of {allowed}"
    return [(each.pid, Complaint("OVERSUBSCRIBED", why, _remedy(plan, each))) for each in workers if not each.planned]


def _threads(worker: Standing) -> int:
    return worker.threads or max(1, worker.computing)


def _remedy(plan: Plan, worker: Standing) -> str:
    if worker.planned:
        return RESTART.format(pid=worker.pid)
    if not worker.threads:
        return UNREGISTER
    workers = next(model.workers for model in plan.models if model.name == worker.model)
    return SCALE_DOWN.format(model=worker.model, workers=workers)
