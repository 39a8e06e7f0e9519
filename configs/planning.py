"""(topology, limits, serving file, archives) → Plan: workers, threads, slots; with a reason for every number.

Nothing here reads the machine, and nothing writes. The rules, in words:

- Budget = min(floor(CPU limit), allowed physical cores), at least 1. The node's size never enters.
- Models divide the budget by their shares, at least one worker each; workers × threads = the model's part.
- Exclusive cores are pinned one by one. Under a quota on a shared node a pin would make every pod fight for the
  same first cores, so there a worker is bound to one socket's allowed CPUs, and nothing spins while it waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from configs.archives import ServedModel
from configs.errors import MachineError, SettingsError
from configs.limits import Limits
from configs.plan import ModelPlan, Plan, Pod, Reason, Slot
from configs.settings import ModelSettings, Settings
from configs.topology import Cpu, Topology, format_cpu_list
from configs.torchserve import launcher_of

# JVM memory beyond its heap: code, threads, netty's direct buffers. Seen: 180 to 260 MB.
JVM_OVERHEAD_BYTES = 300_000_000
# the launcher's wrapper process stays resident, with torch imported
LAUNCHER_WRAPPER_BYTES = 400_000_000
# How much of an SLO's p99 one inference may take; the rest is queueing, decoding and the network.
SLO_PART = 0.5


class _Reasons:
    """Collects one sentence for one decision."""

    def __init__(self) -> None:
        self.all: list[Reason] = []

    def say(self, subject: str, value: object, why: str) -> None:
        self.all.append(Reason(subject, str(value), why))


@dataclass(frozen=True)
class _Part:
    """One model's part of the budget."""

    model: ServedModel
    settings: ModelSettings
    cores: int
    workers: int
    threads: int


def make_plan(topology: Topology, limits: Limits, settings: Settings, models: Sequence[ServedModel],
              torchserve_version: str) -> Plan:
    """Decides everything that the pod's configuration says.

    Raises:
        MachineError: the memory limit leaves no room for one worker a model.
        SettingsError: the user's own workers and threads do not fit the pod.
    """
    reasons = _Reasons()
    pod = _pod(topology, limits)
    cores = topology.physical_cores(limits.allowed)
    budget = _budget(limits, cores, reasons)
    placement = _placement(limits, settings, reasons)
    heap = _heap_mb(limits, reasons)
    parts = _parts(models, settings, budget, reasons)
    parts = [_shape(part, settings, _widest(cores), reasons) for part in parts]
    launcher, launcher_why = _launcher(parts, placement, settings, torchserve_version)
    parts = _fit_memory(parts, limits, heap, launcher, reasons)
    slots = (_exclusive_slots(parts, cores, reasons) if placement == "exclusive"
             else _shared_slots(parts, topology, limits, reasons))
    arguments = _launcher_arguments(torchserve_version, slots[0], parts[0].threads) if launcher else ""
    reasons.say("cpu_launcher_enable", str(launcher).lower(), launcher_why)
    ipex = any(part.model.runtime == "ipex" for part in parts)
    reasons.say("ipex_enable", str(ipex).lower(),
                "an archive was built for the ipex runtime" if ipex else "no archive uses the ipex runtime")
    spin = limits.cpus is None and budget >= sum(part.workers * part.threads for part in parts)
    reasons.say("spinning", "allowed" if spin else "off",
                "each thread has a core, and there is no quota to burn" if spin
                else "a thread that spins while it waits burns the quota, or a neighbour's core")
    reasons.say("JVM processors", budget, "the same count as the workers'; the JVM would do its own")
    planned = tuple(_model_plan(part, own, budget, parts, reasons) for part, own in zip(parts, slots, strict=True))
    return Plan(pod=pod, torchserve_version=torchserve_version, placement=placement, budget=budget, launcher=launcher,
                launcher_args=arguments, ipex=ipex, spin=spin, jvm_cpus=budget, jvm_heap_mb=heap, models=planned,
                reasons=tuple(reasons.all))


def _pod(topology: Topology, limits: Limits) -> Pod:
    return Pod(cpu_limit=limits.cpus, cpu_limit_source=limits.cpus_source, allowed_cpus=limits.allowed,
               allowed_source=limits.allowed_source, physical_cores=len(topology.physical_cores(limits.allowed)),
               sockets=len(topology.sockets(limits.allowed)), nodes=len(topology.nodes(limits.allowed)),
               memory_limit=limits.memory, memory_source=limits.memory_source, pids_limit=limits.pids,
               cpu_model=topology.model)


def _budget(limits: Limits, cores: Sequence[Cpu], reasons: _Reasons) -> int:
    threads = len(limits.allowed)
    reasons.say("allowed CPUs", format_cpu_list(limits.allowed), limits.allowed_source)
    reasons.say("physical cores", len(cores),
                "hardware threads of one core share its multiply units, so a core counts once: "
                f"{threads} allowed CPUs on {len(cores)} cores" if threads > len(cores)
                else "each allowed CPU is a core of its own")
    if limits.cpus is None:
        reasons.say("CPU limit", "none", limits.cpus_source)
        reasons.say("thread budget", len(cores), "no quota: one thread a physical core")
        return len(cores)
    whole = math.floor(limits.cpus + 1e-9)
    reasons.say("CPU limit", f"{limits.cpus:g}", limits.cpus_source)
    if whole < 1:
        reasons.say("thread budget", 1, f"warning: the limit of {limits.cpus:g} CPU is below one thread's worth: "
                                        f"it will be throttled {100 * (1 - limits.cpus):.0f} % of the time")
        return 1
    budget = min(whole, len(cores))
    if budget < whole:
        why = f"{len(cores)} physical cores bound it before the limit of {limits.cpus:g} does"
    elif whole < limits.cpus:
        why = f"floor of {limits.cpus:g}: threads are whole, and one more would be throttled"
    else:
        why = "the CPU limit; the node's size does not matter"
    reasons.say("thread budget", budget, why)
    return budget


def _placement(limits: Limits, settings: Settings, reasons: _Reasons) -> str:
    if settings.placement != "auto":
        reasons.say("placement", settings.placement, "the serving file says so")
        return settings.placement
    if limits.cpuset_is_smaller:
        reasons.say("placement", "exclusive", f"the allowed CPUs are fewer than the node's: {limits.allowed_source}")
        return "exclusive"
    if limits.cpus is not None:
        reasons.say("placement", "shared", "a quota without a cpuset: other pods run on the same cores, and pins "
                                           "would make them fight for the first ones")
        return "shared"
    reasons.say("placement", "exclusive", "no quota and no cpuset: the whole machine is ours")
    return "exclusive"


def _heap_mb(limits: Limits, reasons: _Reasons) -> int:
    heap = 512 if limits.memory is None or limits.memory >= 4 << 30 else 256
    limit = "none" if limits.memory is None else f"{limits.memory / 2**30:.2f} GiB"
    reasons.say("memory limit", limit, limits.memory_source)
    reasons.say("JVM heap", f"{heap} MB", "it only passes requests on" if heap == 512
                else "less than usual, since the memory limit is below 4 GiB")
    return heap


def _parts(models: Sequence[ServedModel], settings: Settings, budget: int, reasons: _Reasons) -> list[_Part]:
    """Divides the budget: one core each, then each further core to the model with the fewest for its share.

    Handing out cores one by one (the Webster/Sainte-Laguë method) never takes a core from a model when the budget
    grows, as rounding shares would.
    """
    own = [settings.models.get(model.name, ModelSettings()) for model in models]
    cores = [1] * len(models)
    for _ in range(budget - len(models)):
        cores[max(range(len(models)), key=lambda i: (own[i].share / (2 * cores[i] + 1), -i))] += 1
    if len(models) > budget:
        reasons.say("more models than cores", len(models), f"{len(models)} models share a budget of {budget}: each "
                    "still gets one worker with one thread, and they take turns")
    elif len(models) > 1:
        for model, mine, count in zip(models, own, cores, strict=True):
            reasons.say(f"{model.name}: cores", count, f"share {mine.share:g} of "
                        f"{sum(each.share for each in own):g} of the budget of {budget}")
    return [_Part(model, mine, count, count, 1) for model, mine, count in zip(models, own, cores, strict=True)]


def _widest(cores: Sequence[Cpu]) -> int:
    """Physical cores of the best-equipped socket: a wider worker would span two."""
    return max(sum(core.socket == socket for core in cores) for socket in {core.socket for core in cores})


def _shape(part: _Part, settings: Settings, widest: int, reasons: _Reasons) -> _Part:
    """Workers × threads of one model's cores."""
    name, cores, own = part.model.name, part.cores, part.settings
    if own.workers is not None or own.threads is not None:
        workers = own.workers or max(1, cores // (own.threads or 1))
        threads = own.threads or max(1, cores // workers)
        if workers * threads > cores:
            raise SettingsError(f"{name}: {workers} workers × {threads} threads do not fit", where=f"models.{name}",
                                why=f"its part of the pod is {cores} threads",
                                remedy=f"workers × threads ≤ {cores}, or a larger share or CPU limit")
        idle = cores - workers * threads
        reasons.say(f"{name}: workers × threads", f"{workers} × {threads}", "the serving file says so"
                    + (f"; warning: {idle} of {cores} cores stay idle" if idle else ""))
        return replace(part, workers=workers, threads=threads)
    divisors = [count for count in range(1, cores + 1) if cores % count == 0 and count <= widest]
    if settings.slo.p99_ms is None:
        reasons.say(f"{name}: workers × threads", f"{cores} × 1", "throughput: one-thread workers never wait for "
                    "each other's threads")
        return replace(part, workers=cores, threads=1)
    room = settings.slo.p99_ms * SLO_PART
    threads = next((count for count in divisors if _expected_ms(part.model, count) <= room), divisors[-1])
    expected = _expected_ms(part.model, threads)
    verdict = (f"the narrowest that divides {cores} and keeps an inference within half of the p99 of "
               f"{settings.slo.p99_ms:g} ms" if expected <= room else
               f"warning: even {threads} threads do not keep an inference within half of the p99 of "
               f"{settings.slo.p99_ms:g} ms; a lighter model would")
    reasons.say(f"{name}: workers × threads", f"{cores // threads} × {threads}", f"{verdict} "
                f"(expected {expected:.1f} ms, {part.model.inference_ms:.1f} ms on one thread)")
    return replace(part, workers=cores // threads, threads=threads)


def _expected_ms(model: ServedModel, threads: int) -> float:
    """Inference time on several threads, by Amdahl's law with a tenth of it serial (pooling, small layers, the head)."""
    return model.inference_ms * (0.1 + 0.9 / threads)


def _fit_memory(parts: list[_Part], limits: Limits, heap: int, launcher: bool, reasons: _Reasons) -> list[_Part]:
    """Takes workers away, from the model with the most, until all fit; their threads go to those that stay."""
    if limits.memory is None:
        return parts
    fixed = heap * 2**20 + JVM_OVERHEAD_BYTES
    wrapper = LAUNCHER_WRAPPER_BYTES if launcher else 0

    def needed(some: list[_Part]) -> int:
        return fixed + sum(part.workers * (part.model.resident_bytes + wrapper) for part in some)

    wanted = list(parts)
    while needed(parts) > limits.memory:
        index = max(range(len(parts)), key=lambda i: (parts[i].workers, parts[i].model.resident_bytes))
        part = parts[index]
        if part.workers == 1:
            raise MachineError("the memory limit leaves no room for one worker of each model",
                               where=limits.memory_source,
                               why=f"{limits.memory / 2**30:.2f} GiB, and {needed(parts) / 2**30:.2f} GiB are needed",
                               remedy="raise the memory limit, or serve fewer models")
        workers = part.workers - 1
        parts = [*parts[:index], replace(part, workers=workers, threads=max(part.threads, part.cores // workers)),
                 *parts[index + 1:]]
    for before, after in zip(wanted, parts, strict=True):
        if before != after:
            reasons.say(f"{after.model.name}: workers", after.workers, f"the memory limit allows no more: a worker "
                        f"holds {after.model.resident_bytes / 2**30:.2f} GiB; each now has {after.threads} threads")
    return parts


def _exclusive_slots(parts: list[_Part], cores: Sequence[Cpu], reasons: _Reasons) -> list[tuple[Slot, ...]]:
    """Disjoint cores for every worker, within one socket (and node) wherever it has enough left; widest first."""
    slots: list[list[Slot]] = [[] for _ in parts]
    if sum(part.workers * part.threads for part in parts) > len(cores):
        for index, part in enumerate(parts):
            core = cores[index % len(cores)]
            slots[index] = [Slot((core.id,), core.socket, core.node)] * part.workers
        reasons.say("slots", "shared cores", "more workers than physical cores: some stand on the same one")
        return [tuple(own) for own in slots]
    free = sorted(cores, key=lambda core: (core.socket, -1 if core.node is None else core.node, core.id))
    for index in sorted(range(len(parts)), key=lambda i: -parts[i].threads):
        part = parts[index]
        for _ in range(part.workers):
            taken = _take(free, part.threads)
            slots[index].append(_slot(taken))
            spans = sorted({core.socket for core in taken})
            if len(spans) > 1:
                reasons.say(f"{part.model.name}: slot {len(slots[index]) - 1}", f"spans sockets {spans}",
                            f"warning: no socket has {part.threads} cores left for it")
    for part, own in zip(parts, slots, strict=True):
        reasons.say(f"{part.model.name}: slots", " ".join(format_cpu_list(slot.cpus) for slot in own),
                    "CPU ids, one hardware thread of each core")
    return [tuple(own) for own in slots]


def _take(free: list[Cpu], count: int) -> list[Cpu]:
    """Removes `count` cores: of one NUMA node if one has them, else of one socket, else the first ones."""
    for key in (lambda core: (core.socket, core.node), lambda core: core.socket):
        for group in dict.fromkeys(map(key, free)):
            members = [core for core in free if key(core) == group]
            if len(members) >= count:
                taken = members[:count]
                break
        else:
            continue
        break
    else:
        taken = free[:count]
    for core in taken:
        free.remove(core)
    return taken


def _slot(cores: Sequence[Cpu]) -> Slot:
    nodes = {core.node for core in cores}
    return Slot(tuple(core.id for core in cores), cores[0].socket, nodes.pop() if len(nodes) == 1 else None)


def _shared_slots(parts: list[_Part], topology: Topology, limits: Limits, reasons: _Reasons) -> list[tuple[Slot, ...]]:
    """All allowed CPUs of one socket for every worker; sockets take turns."""
    by_id = topology.by_id
    sockets = topology.sockets(limits.allowed)
    bound = []
    for socket in sockets:
        members = [by_id[cpu] for cpu in limits.allowed if by_id[cpu].socket == socket]
        bound.append(Slot(tuple(cpu.id for cpu in members), socket, _slot(members).node))
    slots: list[tuple[Slot, ...]] = []
    turn = 0
    for part in parts:
        own = tuple(bound[(turn + worker) % len(bound)] for worker in range(part.workers))
        turn += part.workers
        slots.append(own)
        reasons.say(f"{part.model.name}: slots", " ".join(format_cpu_list(slot.cpus) for slot in own),
                    "bound to a socket, not to a core: the quota limits the worker, its memory stays near"
                    if len(sockets) > 1 else "not bound to a core: the quota limits the worker")
    return slots


def _launcher(parts: list[_Part], placement: str, settings: Settings, version: str) -> tuple[bool, str]:
    if settings.launcher == "off":
        return False, "the serving file says so; workers pin themselves"
    launcher = launcher_of(version)
    if launcher is None:
        return False, f"TorchServe {version} has no launcher; workers pin themselves"
    if not launcher.numbers_workers:
        return False, (f"TorchServe {version} starts every worker as the launcher's only instance, all on the same "
                       "cores; workers pin themselves")
    if placement == "shared":
        return False, "the launcher pins to cores, and shared cores must not be pinned; workers bind themselves"
    if len(parts) > 1:
        return False, f"the launcher counts each model's workers from 0, so {len(parts)} models would stand on the " \
                      "same cores; workers pin themselves"
    return True, "one model on exclusive cores: the launcher pins worker i to the i-th cores of the list"


def _launcher_arguments(version: str, slots: tuple[Slot, ...], threads: int) -> str:
    """Only commas and single blanks: TorchServe splits the arguments at blanks, and the launcher knows no ranges."""
    launcher = launcher_of(version)
    assert launcher is not None
    cores = ",".join(str(cpu) for slot in slots for cpu in slot.cpus)
    return f"{launcher.core_list} {cores} {launcher.cores_per_instance} {threads}"


def _model_plan(part: _Part, slots: tuple[Slot, ...], budget: int, parts: list[_Part], reasons: _Reasons) -> ModelPlan:
    model, own = part.model, part.settings
    measured = "measured when the archive was built" if model.measured else "assumed, the archive brings no measurement"
    batch_ms = model.inference_ms * model.batch_size
    # ×50: throttling, a neighbour, a photo of many megapixels; a worker that exceeds it is killed
    response = own.response_timeout_s or max(10, math.ceil(50 * batch_ms / 1000))
    # all workers of the pod load at the same time, on the budget's cores
    crowd = max(1.0, sum(each.workers for each in parts) / budget)
    startup = own.startup_timeout_s or max(60, math.ceil(4 * crowd * model.load_seconds))
    reasons.say(f"{model.name}: batch", f"{model.batch_size}", "from model.yaml"
                + (f"; a worker waits {model.max_batch_delay_ms} ms for it to fill" if model.batch_size > 1 else ""))
    reasons.say(f"{model.name}: response timeout", f"{response} s", "the serving file says so"
                if own.response_timeout_s else f"50 × {batch_ms:.0f} ms for the largest batch ({measured}), at least 10 s")
    reasons.say(f"{model.name}: startup timeout", f"{startup} s", "the serving file says so" if own.startup_timeout_s
                else f"4 × {model.load_seconds:.0f} s to load ({measured}) × {crowd:g} workers a core, at least 60 s")
    return ModelPlan(
        name=model.name, version=model.version, archive=model.archive, runtime=model.runtime, workers=part.workers,
        threads=part.threads, batch_size=model.batch_size, max_batch_delay_ms=model.max_batch_delay_ms,
        response_timeout_s=response, startup_timeout_s=startup, resident_bytes=model.resident_bytes, slots=slots)
