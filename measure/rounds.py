"""A whole run: archives, servers, warm-up, then rounds in which each setup in turn has its window.

A B C, A B C, …: figures of one round come from the same minute, and only such figures are divided by each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from configs.errors import ServerError
from measure import bodies, load, machine
from measure.archives import Store
from measure.expected import References, questions, references
from measure.processes import become_subreaper, end_all
from measure.resident import IDLE_LIMIT, RESERVE_BYTES, Resident
from measure.setups import Setup, groups, missing_packages, select
from measure.windows import Asked, warm_up, window

FORMAT = 1
LOCUST_LIMIT, AT_RATE = 0.05, 200.0  # Locust is taken if it costs less than this of the pod at so many requests/s
IDLE_LOOK_SECONDS = 3.0
ENOUGH_ANSWERS, LONGEST = 40, 3.0  # a window of a slow setup is longer, up to so many times, until it has so many

Progress = Callable[[str, int, int], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What the user chose; seconds, and numbers of rounds and connections."""

    suite: str = "handler"
    rounds: int = 5
    warm_up: float = 25.0
    window: float = 8.0
    clients: int = 8
    peers: tuple[str, ...] = ()
    setups: tuple[str, ...] = ()
    generator: str = "auto"


class Run:
    """One run and its record, which is written after every round.

    Args:
        out: folder for archives, logs and the record.
        cache: what training the scorer's head keeps.
        progress: called with (what, done, total).
        say: a line for the user.
    """

    def __init__(self, options: Options, out: Path, cache: Path, progress: Progress, say: Say) -> None:
        self.options, self.progress, self.say = options, progress, say
        self.out = out.resolve()
        self.store = Store(self.out / "work", cache)
        self.logs = self.out / "work" / "run"
        self.file = self.out / f"{options.suite}.json"
        self.record: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}  # of each setup's windows

    def run(self) -> dict[str, Any]:
        """Measures everything. No process is left, however it ends.

        Raises:
            ToolkitError: something that was asked for cannot be done.
        """
        options = self.options
        chosen = select(options.setups, options.peers)
        generators = load.candidates(options.generator)
        described = machine.describe()
        self.record = {"format": FORMAT, "suite": options.suite, "complete": False,
                       "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "options": asdict(options),
                       "machine": described, "skipped": {}, "setups": {}, "windows": [], "generators": {},
                       "groups": [], "idle": []}
        become_subreaper()
        self.logs.mkdir(parents=True, exist_ok=True)
        self._write()
        try:
            self._run(chosen, generators, int(described["budget"]))
        finally:
            end_all()
        self.record["complete"] = True
        self._write()
        return self.record

    def _run(self, chosen: Sequence[Setup], generators: list[load.Generator], cores: int) -> None:
        everything = bodies.write_bodies(self.store.work / "bodies")
        self.record["photo"] = bodies.describe(everything)
        ready = self._build(chosen)
        room = (machine.available_memory() - RESERVE_BYTES) / 2**30
        together = groups(ready, room, cores)
        self.record["groups"] = [[setup.name for setup in group] for group in together]
        known = references(ready, everything, self.store, self.say)
        total = sum(len(group) for group in together) * self.options.rounds
        for index, group in enumerate(together):
            names = ", ".join(each.name for each in group)
            self.say(f"group {index + 1} of {len(together)}, in memory at once: {names}")
            resident = Resident(cores)
            try:
                asked = self._start(resident, group, everything, known, index)
                if index == 0:
                    self._choose_generator(resident, group, asked, generators)
                self._warm_up(resident, group, asked)
                self._rounds(resident, group, asked, index, total)
            finally:
                resident.stop()

    def _build(self, chosen: Sequence[Setup]) -> list[Setup]:
        """Archives of all setups that can run here; the others are skipped, with the reason."""
        ready, what = [], "archives"
        for index, setup in enumerate(chosen):
            self.progress(what, index, len(chosen))
            why = missing_packages(setup)
            try:
                if not why:
                    self.store.build(setup)
            except ServerError as error:
                why = f"{error.what}: {error.why}"
            if why:
                self.record["skipped"][setup.name] = why
                self.say(f"{setup.name} is skipped: {why}")
            else:
                ready.append(setup)
        self.progress(what, len(chosen), len(chosen))
        if not ready:
            raise ServerError("no setup can run here", why="; ".join(f"{name}: {why}" for name, why in
                                                                    self.record["skipped"].items()))
        return ready

    def _start(self, resident: Resident, group: Sequence[Setup], everything: tuple[bodies.Body, ...],
               known: References, index: int) -> dict[str, Asked]:
        asked: dict[str, Asked] = {}
        what = f"starting servers, group {index + 1}"
        for number, setup in enumerate(group):
            self.progress(what, number, len(group))
            own = [body for body in everything if body.kind == setup.body]
            if setup.server not in resident.servers:
                facts = resident.start(setup, self.store, self.logs / str(index), own[0])
                self.record["setups"][setup.name] = {**_described(setup), **facts}
            self.record["setups"].setdefault(setup.name, _described(setup))
            [server, *_] = resident.servers[setup.server]
            asked[setup.name] = Asked(own[0], questions(setup, server, own, known) if server.url else [])
        self.progress(what, len(group), len(group))
        return asked

    def _choose_generator(self, resident: Resident, group: Sequence[Setup], asked: dict[str, Asked],
                          generators: list[load.Generator]) -> None:
        """Measures what each generator costs, and takes Locust if that is little enough, else wrk."""
        fast = [next((each for each in group if fits(each)), None) for fits in (_is_food, _is_noop)]
        chosen = [each for each in fast if each] or [each for each in group if each.kind != "in-process"][:1]
        found = self.record["generators"]
        for name in generators if chosen else []:
            seen = []
            for setup in chosen:
                for seconds in (2.0, max(2.0, min(5.0, self.options.window))):
                    last = warm_up(resident, setup, asked[setup.name], name, self.options.clients, seconds, self.logs)
                seen.append(last)
            cost = load.cost_at(AT_RATE, seen)
            found[name] = {"measured": [{"setup": setup.name, "rate": round(each.rate, 1), "cpu_ms_per_request": round(
                               1000 * each.cpu_seconds / max(1, each.requests), 3)}
                               for setup, each in zip(chosen, seen, strict=True)],
                           "cpu_ms_at_200": round(cost, 3),
                           "share_at_200": round(cost * AT_RATE / 1000 / resident.cores, 4)}
        affordable = "locust" in found and found["locust"]["share_at_200"] < LOCUST_LIMIT
        self.generator: load.Generator = ("locust" if affordable else "wrk") if len(generators) > 1 else generators[0]
        self.record["generator"] = self.generator
        self.say("load generator: " + self.generator + "".join(
            f"; {name} costs {100 * each['share_at_200']:.1f} % of the pod at {AT_RATE:.0f} req/s"
            for name, each in found.items()))

    def _warm_up(self, resident: Resident, group: Sequence[Setup], asked: dict[str, Asked]) -> None:
        warm: set[str] = set()
        what = f"warming up, {self.options.warm_up:g} s each"
        for number, setup in enumerate(group):
            self.progress(what, number, len(group))
            seconds = 2.0 if setup.server in warm else self.options.warm_up
            seen = warm_up(resident, setup, asked[setup.name], self.generator, self.options.clients, seconds, self.logs)
            warm.add(setup.server)
            self.say(f"warmed up  {setup.name}: {seen.rate:.1f} req/s")
            # what is still being computed when a window ends is not counted: little of many answers, much of few
            enough = ENOUGH_ANSWERS / max(seen.rate, 0.01)
            self.seconds[setup.name] = min(max(self.options.window, enough), LONGEST * self.options.window)
        self.progress(what, len(group), len(group))
        share = resident.idle_share(IDLE_LOOK_SECONDS)
        resident.pausing = share > IDLE_LIMIT
        self.record["idle"].append({"share": round(share, 4), "paused": resident.pausing})
        self.say(f"all servers idle: {100 * share:.1f} % of the pod's CPU"
                 + (": they are paused while others are measured" if resident.pausing else ""))

    def _rounds(self, resident: Resident, group: Sequence[Setup], asked: dict[str, Asked], index: int,
                total: int) -> None:
        what = "measuring"
        for number in range(self.options.rounds):
            for setup in group:
                self.progress(what, len(self.record["windows"]), total)
                seen = self._window(resident, setup, asked, index, number)
                if seen["idle_share"] > IDLE_LIMIT and not resident.pausing:
                    resident.pausing = self.record["idle"][-1]["paused"] = True
                    self.record.setdefault("discarded", []).append({**seen, "trouble": "idle servers took too much"})
                    seen = self._window(resident, setup, asked, index, number)
                self.record["windows"].append(seen)
                self.say(_line(seen))
            resident.check_alive(group)
            self._write()
        self.progress(what, len(self.record["windows"]), total)

    def _window(self, resident: Resident, setup: Setup, asked: dict[str, Asked], index: int,
                number: int) -> dict[str, Any]:
        seen = window(resident, setup, asked[setup.name], self.generator, self.options.clients,
                      self.seconds[setup.name], self.logs)
        return {"group": index, "round": number, **seen}

    def _write(self) -> None:
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.record, indent=1) + "\n")
        temporary.replace(self.file)


def _described(setup: Setup) -> dict[str, Any]:
    """What the report is to know of a setup before it has started."""
    return {"description": setup.description, **({} if setup.teacher is None else {"teacher": setup.teacher})}


def _is_food(setup: Setup) -> bool:
    return setup.name.startswith("food/")


def _is_noop(setup: Setup) -> bool:
    return setup.kind == "noop"


def _line(seen: dict[str, Any]) -> str:
    text = f"round {seen['round'] + 1}  {seen['setup']}: {seen['rate']:.1f} req/s"
    if "latency_ms" in seen:
        text += f", p99 {seen['latency_ms'].get('p99', 0):.0f} ms"
    text += "" if seen["valid"] else f"  INVALID: {seen['trouble'] or 'no answer'}"
    return text + (f"  WRONG: {seen['wrong'][0]}" if seen["wrong"] else "")


def failures(record: dict[str, Any]) -> list[str]:
    """Why a run has not worked, in words; empty when it has. Missed targets are results, and no failure."""
    found = [f"{window['setup']}, round {window['round'] + 1}: a wrong answer: {window['wrong'][0]}"
             for window in record["windows"] if window["wrong"]]
    valid = {window["setup"] for window in record["windows"] if window["valid"]}
    broken = {window["setup"]: window["trouble"] for window in record["windows"] if window["setup"] not in valid}
    return found + [f"{setup}: no valid window: {why}" for setup, why in broken.items()]
