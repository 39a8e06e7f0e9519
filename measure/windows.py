"""One window: a server under load for some seconds, and all that is to be known of these seconds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from configs.errors import ServerError
from measure import load, stages
from measure.answers import Checked, Checker, Question
from measure.bodies import Body
from measure.processes import machine_cpu
from measure.resident import Resident
from measure.setups import Setup

RE_WARM_SECONDS = 2


@dataclass(frozen=True)
class Asked:
    """How a setup is asked.

    Attributes:
        body: the load's.
        questions: the checker's, with their right answers.
    """

    body: Body
    questions: Sequence[Question]


def warm_up(resident: Resident, setup: Setup, asked: Asked, generator: load.Generator, clients: int, seconds: float,
            folder: Path) -> load.Load:
    """Load whose figures do not count. Waits until the server has settled afterwards."""
    resident.focus(setup.server)
    if setup.kind == "in-process":
        done = _in_process(resident, setup, seconds)
        result = load.Load(done["requests"], done["seconds"])
    else:
        [server] = resident.servers[setup.server]
        result = load.start(generator, server.url, asked.body.path, server.content_type, clients, seconds, folder)()
    resident.settle(setup.server)
    return result


def window(resident: Resident, setup: Setup, asked: Asked, generator: load.Generator, clients: int, seconds: float,
           folder: Path) -> dict[str, Any]:
    """One window, after a short re-warm.

    Returns:
        setup, rate (requests a second, the checker's included), requests, seconds, statuses, errors, latency_ms,
        checks, wrong, valid and trouble; `handled`: requests that the server has worked on (with those that were
        unanswered at the end, one for each connection); cpu_seconds by role for all of them; stages_ms an image and
        their clock; idle_share of the other servers and others_share of processes that are not the run's, of the
        pod's CPU; stolen_share, what the hypervisor took.
    """
    warm_up(resident, setup, asked, generator, clients, RE_WARM_SECONDS, folder)
    [server, *_] = resident.servers[setup.server]
    scraped = _scrape(server.metrics)
    usage, (busy, stolen), own, began = resident.usage(), machine_cpu(), os.times(), time.monotonic()
    if setup.kind == "in-process":
        result = {**_in_process(resident, setup, seconds), "checks": 0, "wrong": [], "trouble": ""}
    else:
        result = _under_load(server.url, server.content_type, asked, generator, clients, seconds, folder)
        resident.settle(setup.server)
    elapsed, after, own_after = time.monotonic() - began, resident.usage(), os.times()
    busy_after, stolen_after = machine_cpu()
    cpu = {role: after[setup.server][role] - usage[setup.server][role] for role in after[setup.server]}
    idle = sum(after[name][role] - usage[name][role] for name in after if name != setup.server for role in after[name])
    ours = sum(cpu.values()) + idle + sum(getattr(own_after, field) - getattr(own, field) for field in (
        "user", "system", "children_user", "children_system"))
    room = elapsed * resident.cores
    if setup.kind != "in-process":
        cpu["client"] = result.pop("client_seconds")
        result["stages_ms"], result["stage_clock"] = _stages(scraped, _scrape(server.metrics))
    return {"setup": setup.name, **result, "valid": not result["trouble"] and result["requests"] > 0,
            "cpu_seconds": _rounded(cpu), "idle_share": round(idle / room, 4),
            "others_share": round(max(0.0, busy_after - busy - ours) / room, 4),
            "stolen_share": round((stolen_after - stolen) / room, 4)}


def _under_load(url: str, content_type: str, asked: Asked, generator: load.Generator, clients: int, seconds: float,
                folder: Path) -> dict[str, Any]:
    wait = load.start(generator, url, asked.body.path, content_type, clients, seconds, folder)
    checker = Checker(url, content_type, asked.questions)
    checker.start()
    checked = Checked()
    try:
        found = wait()
    finally:
        checked = checker.stop()
    trouble = [found.trouble] * bool(found.trouble) + checked.failed[:3]
    # the checker is one more client: where answers take seconds, its share of them is one in nine
    answered = found.requests + checked.asked
    return {"rate": round(answered / found.seconds, 3), "requests": answered, "seconds": round(found.seconds, 3),
            "handled": answered + clients, "statuses": dict(found.statuses), "errors": dict(found.errors),
            "latency_ms": dict(found.latency_ms), "checks": checked.asked, "wrong": checked.wrong[:5],
            "trouble": "; ".join(trouble), "client_seconds": found.cpu_seconds}


def _in_process(resident: Resident, setup: Setup, seconds: float) -> dict[str, Any]:
    """All processes at once, each for so many seconds."""
    started = resident.servers[setup.server]
    for each in started:
        assert each.process.stdin is not None
        each.process.stdin.write(f"{seconds}\n".encode())
        each.process.stdin.flush()
    done = []
    for each in started:
        assert each.process.stdout is not None
        line = each.process.stdout.readline()
        if not line:
            raise ServerError(f"{setup.name} has ended while it was measured", where=str(each.log))
        done.append(json.loads(line))
    images = sum(each["images"] for each in done)
    spent = {stage: sum(each["cpu_seconds"][stage] for each in done) for stage in done[0]["cpu_seconds"]}
    return {"rate": round(sum(each["images"] / each["seconds"] for each in done), 3), "requests": images,
            "seconds": max(each["seconds"] for each in done), "handled": images, "stage_clock": "CPU",
            "stages_ms": _rounded({stage: 1000 * value / max(1, images) for stage, value in spent.items()})}


def _scrape(url: str) -> stages.Counters | None:
    if not url:
        return None
    try:
        return stages.scrape(httpx.get(url, timeout=5, trust_env=False).text)
    except httpx.HTTPError as error:
        raise ServerError("TorchServe's metrics cannot be read", where=url, why=str(error)) from error


def _stages(before: stages.Counters | None, after: stages.Counters | None) -> tuple[dict[str, float], str]:
    if before is None or after is None:
        return {}, ""
    spent = _rounded(stages.between(before, after))
    return spent, ("CPU" if after.cpu else "wall") if spent else ""


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in values.items()}
