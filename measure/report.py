"""A record as Markdown: targets, setups, ratios, where the CPU time goes, and what the figures belong to.

Everything is worked out from the record alone, so a recorded JSON file can be rendered again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from measure import stages
from measure.ratios import Ratio, fastest, figure, rates, ratio, spread
from measure.setups import FP32, INT8, MODELS
from measure.targets import BASELINES, Verdict, evaluate, strongest_intel


def render(record: dict[str, Any]) -> str:
    """The whole report."""
    parts = [_head(record), _targets(evaluate(record["windows"])), _setups(record), _ratios(record),
             _students(record), _stages(record), _notes(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Medians, ratios, stage table and verdicts, for the JSON file: what the report shows, as numbers."""
    found = rates(record["windows"])
    return {
        "rates": {setup: _numbers(spread(own.values())) for setup, own in found.items()},
        "against": {against: {setup: _numbers(value) for setup in found
                              if setup != against and (value := ratio(found, setup, against)) is not None}
                    for against in BASELINES if against in found},
        "students": {setup: {"teacher": record["setups"][setup]["teacher"],
                             "against_teacher": _numbers(ratio(found, setup, teacher)),
                             "against_recognizer": _numbers(ratio(found, setup, food))}
                     for setup, food, teacher in _rivals(record) if setup in found},
        "cpu_ms": [vars(row) for row in stages.table(_windows(record))],
        "targets": [{"target": each.target, "setup": each.setup, "against": each.against, "wanted": each.wanted,
                     "found": _numbers(each.found), "verdict": each.word} for each in evaluate(record["windows"])]}


def _numbers(value: Ratio | None) -> dict[str, float] | None:
    return None if value is None else value.to_dict()


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows])


def _head(record: dict[str, Any]) -> str:
    machine, options, photo = record["machine"], record["options"], record["photo"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"# tscpu bench --suite {record['suite']}",
        f"{machine['cpu_model']} ({', '.join(machine['flags']) or 'no vector extensions'}), "
        f"{machine['physical_cores']} cores allowed ({machine['allowed_cpus']}), {machine['memory_gib']} GiB, "
        f"kernel {machine['kernel']}, Python {machine['python']}, {machine['java']}; {versions}.",
        f"{options['clients']} keep-alive connections in a closed loop, a {photo['width']}×{photo['height']} JPEG of "
        f"{photo['bytes']['jpeg'] / 1000:.0f} kB, {options['warm_up']:g} s of warm-up, {options['rounds']} rounds, the "
        f"setups in turn in each, windows of {options['window']:g} s (up to three times as long where answers are "
        f"few). Ratios are medians of the rounds' ratios, with the smallest and largest. {record['started']}."]
    if not record["complete"]:
        lines.append("**Not complete: the run was interrupted.**")
    return "\n\n".join(lines)


def _targets(verdicts: Sequence[Verdict]) -> str:
    rows = [[each.target, each.setup or "–", each.against, f"≥ {each.wanted:g}×",
             "–" if each.found is None else f"{each.found}×", f"**{each.word}**"] for each in verdicts]
    return "## Targets\n\n" + markdown(["target", "setup", "against", "wanted", "measured", ""], rows)


def _windows(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Valid windows by setup, in the order of the groups."""
    found: dict[str, list[dict[str, Any]]] = {}
    for window in record["windows"]:
        found.setdefault(window["setup"], [])
        if window["valid"]:
            found[window["setup"]].append(window)
    return found


def _setups(record: dict[str, Any]) -> str:
    found = rates(record["windows"])
    intel = strongest_intel(found)
    rows = []
    for setup, own in _windows(record).items():
        rate = spread(found.get(setup, {}).values())
        taken = sum(window["setup"] == setup for window in record["windows"])
        against = [ratio(found, setup, name) if setup != name else None for name in
                   ("stock", intel, f"litserve/{setup.removeprefix('food/')}")]
        rows.append([setup, "–" if rate is None else str(rate), *(_latency(own, key) for key in ("p50", "p99")),
                     *("" if value is None else f"{value}×" for value in against),
                     "" if len(own) == taken else f"{taken - len(own)} of {taken} windows invalid"])
    return "## Setups\n\n" + markdown(
        ["setup", "requests/s", "p50 ms", "p99 ms", "against stock", f"against {intel}", "against LitServe", ""], rows)


def _latency(windows: Sequence[dict[str, Any]], key: str) -> str:
    values = [window["latency_ms"][key] for window in windows if key in window.get("latency_ms", {})]
    return figure(median(values)) if values else ""


def _ratios(record: dict[str, Any]) -> str:
    """Scorer against recognizer, tensor against JPEG and served against in-process, for every runtime."""
    found = rates(record["windows"])
    rows = []
    for runtime in (*FP32, *INT8, "eager"):
        food = f"food/{runtime}"
        own = [ratio(found, f"scorer/{runtime}", food), ratio(found, f"{food}/tensor", food),
               ratio(found, food, f"in-process/{runtime}")]
        if any(own):
            rows.append([runtime, *("" if value is None else str(value) for value in own)])
    if not rows:
        return ""
    return "## Within one runtime\n\n" + markdown(
        ["runtime", "scorer ÷ recognizer", "tensor ÷ JPEG", "efficiency: served ÷ in-process"], rows)


def _students(record: dict[str, Any]) -> str:
    """Each student against the recognizer, as the scorer above, and against its teacher, where that was measured."""
    found = rates(record["windows"])
    rows = []
    for setup, food, teacher in _rivals(record):
        own, learnt = ratio(found, setup, food), ratio(found, setup, teacher)
        if own or learnt:
            rows.append([setup, "" if own is None else str(own),
                         "" if learnt is None else f"{learnt}× against {record['setups'][setup]['teacher']}"])
    return "## Students\n\n" + markdown(["student", "student ÷ recognizer", "student ÷ its teacher"],
                                        rows) if rows else ""


def _rivals(record: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Students' setups, with the recognizer's and the teacher's on the same runtime, measured or not."""
    short = {model: name for name, model in MODELS.items()}
    split = {setup: (facts["teacher"], setup.rpartition("/")[2]) for setup, facts in record["setups"].items()
             if "teacher" in facts}
    return [(setup, f"food/{runtime}", f"{short.get(teacher, teacher)}/{runtime}")
            for setup, (teacher, runtime) in split.items()]


def _stages(record: dict[str, Any]) -> str:
    windows = _windows(record)
    columns = ("jvm", "worker", "protocol", "decode", "preprocess", "infer", "head", "postprocess", "unexplained",
               "other", "client")
    rows = [[row.setup, *("" if (value := getattr(row, column)) is None else f"{value:.2f}" for column in columns)]
            for row in stages.table(windows)]
    clocks = {window.get("stage_clock") for own in windows.values() for window in own} - {None, ""}
    text = ("## CPU-milliseconds a request\n\n" + markdown(["setup", "JVM", "worker", *columns[2:]], rows)
            + "\n\nThe worker's time is protocol (the worker of `noop`) + stages + unexplained. `head` is part of the "
              "graph: the difference between the scorer's and the recognizer's infer, taken out of infer. `other`: "
              "supervisor, launcher wrappers, API servers; of LitServe, all of it.")
    if "wall" in clocks:
        text += " **These handlers measured wall time, not CPU time, of their stages, so nothing is said of the rest.**"
    return text


def _notes(record: dict[str, Any]) -> str:
    windows = record["windows"]
    lines = []
    for name, each in record["generators"].items():
        seen = ", ".join(f"{one['cpu_ms_per_request']:.2f} CPU-ms a request on {one['setup']} at {one['rate']:.0f} "
                         "req/s" for one in each["measured"])
        lines.append(f"{'Load by ' if name == record.get('generator') else 'Not taken: '}{name}: {seen}; at 200 req/s "
                     f"{100 * each['share_at_200']:.1f} % of the pod.")
    if windows:
        idle = max(window["idle_share"] for window in windows)
        others = [window["others_share"] for window in windows]
        stolen = max(window["stolen_share"] for window in windows)
        paused = any(each["paused"] for each in record["idle"])
        lines += [f"Idle servers took at most {100 * idle:.1f} % of the pod's CPU in a window"
                  + (", paused (SIGSTOP) while others were measured." if paused else "."),
                  f"Processes that are not the run's took {100 * median(others):.1f} % (at most "
                  f"{100 * max(others):.1f} %), the hypervisor at most {100 * stolen:.1f} %."]
        checks, wrong = sum(window["checks"] for window in windows), sum(len(window["wrong"]) for window in windows)
        lines.append(f"{checks} answers were checked under load, {wrong} were wrong.")
    for index, group in enumerate(record["groups"]):
        lines.append(f"In memory at once{f', group {index + 1}' if len(record['groups']) > 1 else ''}: "
                     f"{', '.join(group)}.")
    lines += [f"`{name}`: {facts['description']}{_workers(facts)}." for name, facts in record["setups"].items()]
    lines += [f"`{name}` is left out: {why}." for name, why in record["skipped"].items()]
    best = [fastest(rates(windows), [f"food/{runtime}" for runtime in kind], BASELINES) for kind in (FP32, INT8)]
    lines.append(f"Targets are those of the fastest of their kind: {', '.join(filter(None, best)) or 'none measured'}.")
    return "## Notes\n\n" + "\n".join(f"- {line}" for line in lines)


def _workers(facts: dict[str, Any]) -> str:
    workers = facts.get("workers") or []
    if not workers:
        return ""
    cpus = " / ".join(",".join(map(str, worker["cpus"])) for worker in workers)
    return f"; {len(workers)} workers on CPUs {cpus}"
