"""(topology, limits, serving file, archives) → Plan: workers, threads, slots; with a reason for every number.

Nothing here reads the machine, and nothing writes. The rules, in words:

- Budget = min(floor(CPU limit), allowed physical cores), at least 1. The node's size never enters.
- Models divide the budget by their shares, at least one worker each (`parts`); workers × threads = the model's part.
- Exclusive cores are pinned one by one (`slots`). Under a quota on a shared node a pin would make every pod fight for
  the same first cores, so there a worker is bound to one socket's allowed CPUs, and nothing spins while it waits.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from fractions import Fraction

from configs.archives import ServedModel
from configs.limits import Limits
from configs.parts import Part, Resource, divide, say_shape, settle
from configs.plan import ModelPlan, Plan, Pod, Reasons, Slot
from configs.runtimes import choose_runtime
from configs.settings import ModelSettings, Settings
from configs.slots import exclusive_slots, shared_slots, sockets
from configs.topology import Topology, format_cpu_list
from configs.torchserve import Launcher, launcher_of

# JVM memory beyond its heap: code, threads, netty's direct buffers. Seen: 180 to 260 MB.
JVM_OVERHEAD_BYTES = 300_000_000
# the supervisor and TorchServe's own Python parent. Seen: 45 MB each.
PARENTS_BYTES = 100_000_000
# the launcher's wrapper process stays resident, with torch imported
LAUNCHER_WRAPPER_BYTES = 500_000_000
# Tasks of the JVM, and those that come with a worker: its own but for computing, the JVM's for it, the launcher's
# wrapper, a dry run of the launcher beside it. Seen: 26 at rest, and about 15.
JVM_TASKS, WORKER_TASKS = 60, 30


def make_plan(topology: Topology, limits: Limits, settings: Settings, models: Sequence[ServedModel],
              torchserve_version: str, installed: Container[str] | None = None) -> Plan:
    """Decides everything that the pod's configuration says.

    Args:
        installed: packages that workers can import, for `runtime: auto`; None where that is not known.

    Raises:
        MachineError: memory or pids leave no room for one worker a model.
        SettingsError: the user's own workers and threads do not fit the pod, or an archive does not fit its CPU.
    """
    reasons = Reasons()
    own = [settings.models.get(model.name, ModelSettings()) for model in models]
    models = [_with_runtime(model, each, topology, installed, reasons)
              for model, each in zip(models, own, strict=True)]
    cores = topology.physical_cores(limits.allowed)
    rooms = [len(group) for group in sockets(cores)]
    budget = thread_budget(topology, limits)
    _say_budget(limits, len(cores), budget, reasons)
    placement = _placement(limits, settings, len(cores), reasons)
    heap = _heap_mb(limits, reasons)
    launcher, launcher_why = _launcher(models, topology, limits, placement, settings, torchserve_version)
    parts = settle(divide(models, own, budget, rooms, reasons), settings.slo.p99_ms, rooms,
                   _resources(limits, heap, launcher is not None))
    for part in parts:
        say_shape(part, settings.slo.p99_ms, reasons)
    slots = _slots(parts, topology, limits, placement, budget, reasons)
    if launcher is not None and not _in_launcher_order(slots[0]):
        launcher, launcher_why = None, ("the launcher cuts the sorted list of CPUs into workers, and here that would "
                                        "mix sockets; workers pin themselves")
    reasons.say("cpu_launcher_enable", str(launcher is not None).lower(), launcher_why)
    _say_memory_binding(topology, limits, launcher is not None, reasons)
    ipex = any(model.runtime == "ipex" for model in models)
    reasons.say("ipex_enable", str(ipex).lower(),
                "a model is served by the ipex runtime" if ipex else "no model is served by the ipex runtime")
    spin = (placement == "exclusive" and limits.cpus is None
            and budget >= sum(part.workers * part.threads for part in parts))
    reasons.say("spinning", "allowed" if spin else "off",
                "each thread has a core of its own, and there is no quota to burn" if spin
                else "a thread that spins while it waits burns the quota, or a neighbour's core")
    reasons.say("JVM processors", budget, "the same count as the workers'; the JVM would do its own")
    # all workers of the pod load at the same time
    crowd = max(1.0, sum(part.workers for part in parts) / min(budget, limits.cpus or budget))
    planned = tuple(_model_plan(part, each, crowd, reasons) for part, each in zip(parts, slots, strict=True))
    return Plan(pod=_pod(topology, limits), torchserve_version=torchserve_version, placement=placement, budget=budget,
                launcher=launcher is not None,
                launcher_args=launcher.arguments(slots[0], parts[0].threads) if launcher else "", ipex=ipex, spin=spin,
                jvm_cpus=budget, jvm_heap_mb=heap, models=planned, reasons=tuple(reasons.all))


def _with_runtime(model: ServedModel, own: ModelSettings, topology: Topology, installed: Container[str] | None,
                  reasons: Reasons) -> ServedModel:
    chosen, why = choose_runtime(model, own.runtime, topology, installed)
    reasons.say(f"{model.name}: runtime", chosen.runtime, why)
    return chosen


def _pod(topology: Topology, limits: Limits) -> Pod:
    return Pod(cpu_limit=limits.cpus, cpu_limit_source=limits.cpus_source, allowed_cpus=limits.allowed,
               allowed_source=limits.allowed_source, physical_cores=len(topology.physical_cores(limits.allowed)),
               sockets=len(topology.sockets(limits.allowed)), nodes=len(topology.nodes(limits.allowed)),
               memory_limit=limits.memory, memory_source=limits.memory_source, pids_limit=limits.pids,
               cpu_model=topology.model, cpu_stat=str(limits.cpu_stat or ""))


def thread_budget(topology: Topology, limits: Limits) -> int:
    """Threads that all workers together may run: min(floor(CPU limit), allowed physical cores), at least 1."""
    cores = len(topology.physical_cores(limits.allowed))
    return cores if limits.cpus is None else max(1, min(_whole(limits.cpus), cores))


def _whole(cpus: float) -> int:
    return math.floor(cpus + 1e-9)


def _say_budget(limits: Limits, cores: int, budget: int, reasons: Reasons) -> None:
    threads = len(limits.allowed)
    reasons.say("allowed CPUs", format_cpu_list(limits.allowed), limits.allowed_source)
    reasons.say("physical cores", cores,
                "hardware threads of one core share its multiply units, so a core counts once: "
                f"{threads} allowed CPUs on {cores} cores" if threads > cores
                else "each allowed CPU is a core of its own")
    reasons.say("CPU limit", "none" if limits.cpus is None else f"{limits.cpus:g}", limits.cpus_source)
    if limits.cpus is None:
        why = "no quota: one thread a physical core"
    elif limits.cpus + 1e-9 < 1:
        why = (f"warning: the limit of {limits.cpus:g} CPU is below one thread's worth: it will be throttled "
               f"{100 * (1 - limits.cpus):.0f} % of the time")
    elif budget < _whole(limits.cpus):
        why = f"{cores} physical cores bound it before the limit of {limits.cpus:g} does"
    elif budget + 1e-9 < limits.cpus:
        why = f"floor of {limits.cpus:g}: threads are whole, and one more would be throttled"
    else:
        why = "the CPU limit; the node's size does not matter"
    reasons.say("thread budget", budget, why)


def _placement(limits: Limits, settings: Settings, cores: int, reasons: Reasons) -> str:
    if settings.placement != "auto":
        reasons.say("placement", settings.placement, "the serving file says so")
        return settings.placement
    if limits.cpus is None:
        reasons.say("placement", "exclusive", f"the allowed CPUs are fewer than the node's: {limits.allowed_source}"
                    if limits.cpuset_is_smaller else "no quota and no cpuset: the whole machine is ours")
        return "exclusive"
    if limits.cpuset_is_smaller and limits.cpus >= cores:
        reasons.say("placement", "exclusive", f"the quota covers the cpuset: {limits.allowed_source}")
        return "exclusive"
    reasons.say("placement", "shared", f"the quota is less than the cpuset's {cores} cores: it is a pool of several "
                "pods, and pins would make them fight for its first cores" if limits.cpuset_is_smaller else
                "a quota without a cpuset: other pods run on the same cores, and pins would make them fight for the "
                "first ones")
    return "shared"


def heap_mb(memory: int | Fraction | None) -> int:
    """The JVM's heap under a memory limit in bytes; None for no limit."""
    return 512 if memory is None or memory >= 4 << 30 else 256


def pod_memory(heap: int, workers: Iterable[tuple[int, int]], launcher: bool) -> int:
    """What a pod holds, in bytes: the JVM, the supervisor and TorchServe's parent, and the workers.

    Args:
        heap: of the JVM, in MB.
        workers: of each model: how many, and the resident bytes of one.
        launcher: whether each has a launcher's wrapper beside it.
    """
    wrapper = LAUNCHER_WRAPPER_BYTES if launcher else 0
    return (heap * 2**20 + JVM_OVERHEAD_BYTES + PARENTS_BYTES
            + sum(count * (resident + wrapper) for count, resident in workers))


def gib(size: int | Fraction) -> str:
    """Bytes, in words."""
    return f"{float(size) / 2**30:.2f} GiB"


def _heap_mb(limits: Limits, reasons: Reasons) -> int:
    heap = heap_mb(limits.memory)
    reasons.say("memory limit", "none" if limits.memory is None else gib(limits.memory), limits.memory_source)
    reasons.say("pids limit", "none" if limits.pids is None else limits.pids, limits.pids_source)
    reasons.say("JVM heap", f"{heap} MB", "it only passes requests on" if heap == 512
                else "less than usual, since the memory limit is below 4 GiB")
    return heap


def _resources(limits: Limits, heap: int, launcher: bool) -> tuple[Resource, Resource]:
    wrapper = LAUNCHER_WRAPPER_BYTES if launcher else 0

    def memory(parts: Sequence[Part]) -> int:
        return pod_memory(heap, ((part.workers, part.model.resident_bytes) for part in parts), launcher)

    def tasks(parts: Sequence[Part]) -> int:
        return JVM_TASKS + sum(part.workers * (WORKER_TASKS + part.threads - 1) for part in parts)

    return (Resource("memory limit", limits.memory, limits.memory_source, memory, gib,
                     lambda part: f"a worker holds {gib(part.model.resident_bytes + wrapper)}"),
            Resource("pids limit", limits.pids, limits.pids_source, tasks, lambda count: f"{count} tasks",
                     lambda part: f"a worker and what comes with it are {WORKER_TASKS} tasks"))


def _slots(parts: Sequence[Part], topology: Topology, limits: Limits, placement: str, budget: int,
           reasons: Reasons) -> list[tuple[Slot, ...]]:
    shapes = [part.shape for part in parts]
    cores = topology.physical_cores(limits.allowed)
    if placement == "exclusive":
        slots = exclusive_slots(shapes, cores, budget)
        why = "CPU ids, one hardware thread of each core" if len(parts) <= budget else \
              f"more models than cores: some stand on the same one of {budget}"
    else:
        slots = shared_slots(shapes, topology, limits.allowed, limits.host)
        why = "bound to a socket, not to a core: the quota limits the worker, its memory stays near" \
            if len(sockets(cores)) > 1 else "not bound to a core: the quota limits the worker"
    for part, own in zip(parts, slots, strict=True):
        reasons.say(f"{part.model.name}: slots", " ".join(format_cpu_list(slot.cpus) for slot in own), why)
        for index, slot in enumerate(own):
            spans = topology.sockets(slot.cpus)
            if len(spans) > 1:
                reasons.say(f"{part.model.name}: slot {index}", "spans sockets " + ", ".join(map(str, spans)),
                            f"warning: no socket has {part.threads} cores for it" if len(sockets(cores)) > 1 else
                            "they have one core each and one memory: a hypervisor numbers them so")
    return slots


def _launcher(models: Sequence[ServedModel], topology: Topology, limits: Limits, placement: str, settings: Settings,
              version: str) -> tuple[Launcher | None, str]:
    """The launcher where it would do what the plan says, else None, and why."""
    launcher = launcher_of(version)
    if settings.launcher == "off":
        return None, "the serving file says so; workers pin themselves"
    if launcher is None:
        return None, f"TorchServe {version} has no launcher; workers pin themselves"
    if not launcher.numbers_workers:
        return None, (f"TorchServe {version} starts every worker as the launcher's only instance, all on the same "
                      "cores; workers pin themselves")
    if placement == "shared":
        return None, "the launcher pins to cores, and shared cores must not be pinned; workers bind themselves"
    if len(models) > 1:
        return None, f"the launcher counts each model's workers from 0, so {len(models)} models would stand on the " \
                     "same cores; workers pin themselves"
    if any(topology.by_id[cpu].node not in range(10) for cpu in limits.allowed):
        return None, "the launcher cannot read this machine: it wants NUMA nodes, of one digit; workers pin themselves"
    return launcher, "one model on exclusive cores: the launcher pins worker i to the i-th cores of the list"


def _in_launcher_order(slots: Sequence[Slot]) -> bool:
    """Whether the slots are what the launcher makes of their CPUs: it sorts them and gives each worker the next few."""
    cpus = sorted(cpu for slot in slots for cpu in slot.cpus)
    width = len(slots[0].cpus)
    return {tuple(cpus[i:i + width]) for i in range(0, len(cpus), width)} == {slot.cpus for slot in slots}


def _say_memory_binding(topology: Topology, limits: Limits, launcher: bool, reasons: Reasons) -> None:
    nodes = topology.nodes(limits.allowed)
    if len(nodes) < 2:
        value, why = "off", "one NUMA node: all of its memory is equally near" if nodes else "no NUMA nodes are known"
    elif launcher and 0 in limits.allowed and 0 in nodes:
        value, why = "by the launcher", "with numactl, where there is one and the pod may set a memory policy"
    else:
        value, why = "off", ("a bound worker's memory is near from its first use on, and a policy would need a "
                             "privilege that pods lack")
        if launcher:
            why = "the launcher tries numactl on CPU 0 and node 0, which are not ours, and pins with taskset; " + why
    reasons.say("memory binding", value, why)


def _model_plan(part: Part, slots: tuple[Slot, ...], crowd: float, reasons: Reasons) -> ModelPlan:
    model, own = part.model, part.settings
    measured = "measured when the archive was built" if model.measured else "assumed, the archive brings no measurement"
    batch_ms = model.inference_ms * model.batch_size
    # ×50: throttling, a neighbour, a photo of many megapixels; a worker that exceeds it is killed
    response = own.response_timeout_s or max(10, math.ceil(50 * batch_ms / 1000))
    startup = own.startup_timeout_s or max(60, math.ceil(4 * crowd * model.load_seconds))
    reasons.say(f"{model.name}: batch", f"{model.batch_size}", "from model.yaml"
                + (f"; a worker waits {model.max_batch_delay_ms} ms for it to fill" if model.batch_size > 1 else ""))
    reasons.say(f"{model.name}: response timeout", f"{response} s", "the serving file says so"
                if own.response_timeout_s
                else f"50 × {batch_ms:.0f} ms for the largest batch ({measured}), at least 10 s")
    reasons.say(f"{model.name}: startup timeout", f"{startup} s", "the serving file says so" if own.startup_timeout_s
                else f"4 × {model.load_seconds:.0f} s to load ({measured}) × {crowd:g} workers a core, at least 60 s")
    return ModelPlan(
        name=model.name, version=model.version, archive=model.archive, runtime=model.runtime, workers=part.workers,
        threads=part.threads, batch_size=model.batch_size, max_batch_delay_ms=model.max_batch_delay_ms,
        response_timeout_s=response, startup_timeout_s=startup, resident_bytes=model.resident_bytes, slots=slots)
