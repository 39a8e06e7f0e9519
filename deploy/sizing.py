"""What a pod of these limits would plan: workers, memory and time to start, by the same arithmetic as in the pod."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from configs.limits import Limits
from configs.plan import Plan
from configs.planning import heap_mb, make_plan, pod_memory
from configs.topology import Cpu, Topology
from deploy.workload import Case

NODE_CORES = 64  # of a node that no limit here comes near
TORCHSERVE = "0.12.0"  # the image's
# the preflight comes first, and the health port is closed until it is done; then what `tscpu serve` allows for
PREFLIGHT_SECONDS, PROCESSES_SECONDS = 30, 60


@dataclass(frozen=True)
class Size:
    """What is planned where memory is no bound, and what that takes.

    Attributes:
        workers: of all models.
        memory: bytes: workers, JVM and parents.
        start_seconds: from the container's start to where the supervisor gives up.
    """

    plan: Plan
    workers: int
    memory: int
    start_seconds: int


def size(case: Case) -> Size | None:
    """None where models, settings or the CPU limit are unknown.

    Raises:
        ToolkitError: the pod could not plan: serving.yaml asks for more than the limits give.
    """
    cpus = case.workload.amount("limits", "cpu")
    if case.settings is None or case.models is None or not cpus:
        return None
    plan = make_plan(*_machine(cpus, case.workload.exclusive), case.settings, case.models, TORCHSERVE)
    memory = pod_memory(heap_mb(case.workload.amount("limits", "memory")),
                        ((model.workers, model.resident_bytes) for model in plan.models), plan.launcher)
    start = PREFLIGHT_SECONDS + PROCESSES_SECONDS + max(model.startup_timeout_s for model in plan.models)
    return Size(plan, sum(model.workers for model in plan.models), memory, start)


def _machine(cpus: Fraction, exclusive: bool) -> tuple[Topology, Limits]:
    """A node of one socket and plain cores, and a pod on it: with a cpuset of its own, or a quota alone."""
    cores = max(NODE_CORES, math.ceil(cpus) + 1)
    topology = Topology(tuple(Cpu(id, id, 0, 0) for id in range(cores)), "a node", "unknown", frozenset())
    shared = Limits(cpus=float(cpus), cpus_source="resources.limits.cpu", allowed=topology.online,
                    allowed_source="a node", cpuset_is_smaller=False, memory=None, memory_source="not asked", pids=None,
                    pids_source="not asked", cgroup="v2", cpu_stat=None)
    if not exclusive:
        return topology, shared
    return topology, replace(shared, allowed=topology.online[:max(1, math.floor(cpus))], cpuset_is_smaller=True,
                             allowed_source="cpuset of the static CPU manager policy")
