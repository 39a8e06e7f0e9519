"""Each model's part of the budget, and its shape: workers × threads.

`divide` hands out the budget by shares, and `shape` gives each part the shape that should answer most requests within
what memory, pids and sockets allow. Which CPUs the workers then get is decided in `slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from configs.archives import ServedModel
from configs.errors import MachineError, SettingsError
from configs.plan import Reasons
from configs.settings import ModelSettings
from configs.slots import Shape, pack

# How much of an SLO's p99 one inference may take; the rest is queueing, decoding and the network.
SLO_PART = 0.5
# Of an inference: pooling, small layers, the head. The rest divides among threads (Amdahl's law).
SERIAL = 0.1
# Of a part's cores, how many may stay idle for the sake of a better width: 8 cores as 3 × 2 use three quarters.
IDLE = 0.25


@dataclass(frozen=True)
class Part:
    """One model's part of the budget.

    Attributes:
        cores: of the budget.
        most: workers that memory and pids allow, and which of the two said so.
        widest: threads that a worker may have, so that each finds a socket with as many free cores.
    """

    model: ServedModel
    settings: ModelSettings
    cores: int
    widest: int
    most: int
    most_why: str = ""
    workers: int = 1
    threads: int = 1

    @property
    def shape(self) -> Shape:
        return self.workers, self.threads


@dataclass(frozen=True)
class Resource:
    """Something that workers use up and that does not share out by itself.

    Attributes:
        limit: None for no limit. source: where it was read.
        needed: for these parts, in the limit's unit.
        text: an amount for people.
        each: what one worker of a part takes, in words.
    """

    name: str
    limit: int | None
    source: str
    needed: Callable[[Sequence[Part]], int]
    text: Callable[[int], str]
    each: Callable[[Part], str]


def divide(models: Sequence[ServedModel], settings: Sequence[ModelSettings], budget: int, rooms: Sequence[int],
           reasons: Reasons) -> list[Part]:
    """Gives each model what its own settings ask for, at least one core, and the rest by shares.

    Handing out cores one by one (the Webster/Sainte-Laguë method) never takes a core from a model when the budget
    grows, as rounding shares would.

    Args:
        rooms: cores of each socket.

    Raises:
        SettingsError: the workers and threads that the user asked for exceed the budget.
    """
    cores = [(own.workers or 1) * (own.threads or 1) for own in settings]
    if sum(cores) > budget and max(cores) > 1:
        raise _too_many(models, settings, cores, budget)
    # a model whose workers and threads are both given has its word, and no more
    open_ended = [i for i, own in enumerate(settings) if own.workers is None or own.threads is None]
    for _ in range(budget - sum(cores) if open_ended else 0):
        cores[max(open_ended, key=lambda i: (settings[i].share / (2 * cores[i] + 1), -i))] += 1
    if sum(cores) < budget:
        reasons.say("idle cores", budget - sum(cores), "warning: the serving file gives all workers and threads, "
                    f"{100 * sum(cores) / budget:.0f} % of the budget of {budget}")
    if len(models) > budget:
        reasons.say("more models than cores", len(models), f"warning: {len(models)} models on a budget of {budget}: "
                    "each still gets one worker with one thread, and they take turns")
    elif len(models) > 1:
        total = sum(own.share for own in settings)
        for i, (model, own, count) in enumerate(zip(models, settings, cores, strict=True)):
            reasons.say(f"{model.name}: cores", count, f"share {own.share:g} of {total:g} of the budget of {budget}"
                        if i in open_ended else "the serving file gives both workers and threads")
    return [Part(model, own, count, max(rooms), count)
            for model, own, count in zip(models, settings, cores, strict=True)]


def shape(part: Part, p99_ms: float | None, rooms: Sequence[int]) -> Part:
    """The shape of a part: of those that meet the latency target, the one with the highest expected throughput.

    Without a target these are one-thread workers, as many as cores, unless there may not be so many. If no shape
    meets the target it is the fastest. At most a quarter of the cores stays idle, where the user leaves the choice.
    """
    own = part.settings
    options = []
    for threads in [own.threads] if own.threads else range(1, max(1, min(part.cores, part.widest)) + 1):
        # as many as sockets hold whole; a width that the user gave may be wider than all of them
        whole = sum(room // threads for room in rooms) or part.cores
        most = min(part.cores // threads, whole)
        workers = own.workers or min(most, part.most)
        if workers <= most or (own.workers and own.threads):
            options.append((workers, threads))
    thrifty = [each for each in options if each[0] * each[1] >= (1 - IDLE) * part.cores]
    options = thrifty or options
    fast = [each for each in options if meets(replace(part, threads=each[1]), p99_ms)]
    if fast:
        workers, threads = max(fast, key=lambda each: (each[0] / expected_ms(part.model, each[1]), -each[1]))
    else:
        workers, threads = min(options, key=lambda each: (expected_ms(part.model, each[1]), -each[0]))
    return replace(part, workers=workers, threads=threads)


def expected_ms(model: ServedModel, threads: int) -> float:
    """Inference time on several threads."""
    return model.inference_ms * (SERIAL + (1 - SERIAL) / threads)


def meets(part: Part, p99_ms: float | None) -> bool:
    """Whether an inference leaves enough of the latency target for the rest; without a target, always."""
    return p99_ms is None or expected_ms(part.model, part.threads) <= SLO_PART * p99_ms


def settle(parts: Sequence[Part], p99_ms: float | None, rooms: Sequence[int],
           resources: Sequence[Resource]) -> list[Part]:
    """Shapes all parts, so that together they fit the resources and the sockets.

    Workers are taken from the model that has the most, and its cores go to those that stay. Where there is no way to
    keep every worker within a socket, some become narrower: one model's, so that most targets are met and fewest cores
    idle, or else the widest, again and again.

    Raises:
        MachineError: a resource does not suffice for one worker of each model.
        SettingsError: nor for as many as the user asked for.
    """
    settled = [shape(part, p99_ms, rooms) for part in parts]
    while True:
        for resource in resources:
            while resource.limit is not None and resource.needed(settled) > resource.limit:
                index = _most_workers(settled, resource)
                part = replace(settled[index], most=settled[index].workers - 1,
                               most_why=f"the {resource.name} allows no more: {resource.each(settled[index])}")
                settled[index] = shape(part, p99_ms, rooms)
        movable = [i for i, part in enumerate(settled) if part.threads > 1 and part.settings.threads is None]
        if not movable or _fits(settled, rooms):
            return settled
        trials = []
        for i in sorted(movable, key=lambda i: -settled[i].threads):
            narrower = shape(replace(settled[i], widest=settled[i].threads - 1), p99_ms, rooms)
            trials.append([*settled[:i], narrower, *settled[i + 1:]])
        settled = max((trial for trial in trials if _fits(trial, rooms)), default=trials[0], key=lambda trial: (
            sum(meets(part, p99_ms) for part in trial), sum(part.workers * part.threads for part in trial)))


def _fits(parts: Sequence[Part], rooms: Sequence[int]) -> bool:
    """Whether every worker finds a socket with as many free cores as it has threads."""
    widths = [part.threads for part in parts for _ in range(part.workers) if part.threads > 1]
    return pack(sorted(widths, reverse=True), rooms) is not None


def say_shape(part: Part, p99_ms: float | None, reasons: Reasons) -> None:
    """The reason of one model's workers and threads."""
    own, cores, threads = part.settings, part.cores, part.threads
    expected = expected_ms(part.model, threads)
    timing = f"expected {expected:.1f} ms, {part.model.inference_ms:.1f} ms on one thread"
    given = " and ".join(name for name, value in (("workers", own.workers), ("threads", own.threads)) if value)
    if given:
        why = [f"the serving file gives {given}" + (f" ({timing})" if p99_ms is not None else "")]
    elif p99_ms is None:
        why = ["throughput: one-thread workers never wait for each other's threads" if threads == 1
               else f"throughput: {part.workers} workers use the cores best with {threads} threads each"]
    elif meets(part, p99_ms):
        why = [f"the most throughput that keeps an inference within half of the p99 of {p99_ms:g} ms ({timing})"]
    else:
        why = [f"warning: even {threads} thread{'s' * (threads > 1)} do not keep an inference within half of the p99 "
               f"of {p99_ms:g} ms ({timing}); a lighter model would"]
    if part.most < cores:
        why.append(part.most_why)
    if threads == part.widest < cores and not own.threads and (p99_ms is not None or part.most < cores):
        why.append("a wider worker would span two sockets")
    used = part.workers * threads
    if used < cores:
        why.append(f"warning: {cores - used} of {cores} cores stay idle, {100 * used / cores:.0f} % are used")
    reasons.say(f"{part.model.name}: workers × threads", f"{part.workers} × {threads}", "; ".join(why))


def _most_workers(parts: Sequence[Part], resource: Resource) -> int:
    """The model that gives up a worker: the one with the most, unless the user gave their number."""
    open_ended = [i for i, part in enumerate(parts) if part.workers > 1 and part.settings.workers is None]
    if open_ended:
        return max(open_ended, key=lambda i: (parts[i].workers, parts[i].model.resident_bytes))
    assert resource.limit is not None
    why = f"{resource.text(resource.limit)}, and {resource.text(resource.needed(parts))} are needed"
    stubborn = max(parts, key=lambda part: part.workers)
    if stubborn.workers > 1:
        raise SettingsError(f"{stubborn.model.name}: {stubborn.workers} workers do not fit into the {resource.name}",
                            where=f"models.{stubborn.model.name}.workers = {stubborn.workers}",
                            why=f"{why} ({resource.source})", remedy=f"fewer workers, or raise the {resource.name}")
    raise MachineError(f"the {resource.name} leaves no room for one worker of each model", where=resource.source,
                       why=why, remedy=f"raise the {resource.name}, or serve fewer models")


def _too_many(models: Sequence[ServedModel], settings: Sequence[ModelSettings], cores: Sequence[int],
              budget: int) -> SettingsError:
    worst = max(range(len(models)), key=lambda i: cores[i])
    name, own = models[worst].name, settings[worst]
    field = "workers" if (own.workers or 1) >= (own.threads or 1) else "threads"
    others = budget - sum(cores) + cores[worst]
    return SettingsError(
        f"{name}: {own.workers or 1} workers × {own.threads or 1} threads do not fit",
        where=f"models.{name}.{field} = {getattr(own, field)}",
        why=f"the pod's budget is {budget} threads"
            + (f", of which the other models leave {max(0, others)}" if len(models) > 1 else ""),
        remedy=f"workers × threads ≤ {max(1, others)}, or a higher CPU limit")
