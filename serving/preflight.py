"""Everything that would fail silently, found before the JVM starts, all in one go, each with its remedy.

Only running the checks lives here; they live in `preflight_probes` (other programs), `preflight_pod` (this pod) and
`preflight_archives`. They run at the same time. All but two take less than half a second together; the CPU launcher's
dry run (only where it is planned) imports torch, and the import of IPEX (only where an archive needs it) keeps one CPU
busy for 4.7 s. Both are on, since what they find cannot be seen otherwise until workers die, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ToolkitError
from configs.plan import Plan
from configs.settings import Settings
from serving import preflight_archives, preflight_pod, preflight_probes
from serving.preflight_problem import Problem, from_error

THREADS = 16  # more than there are checks: none waits for another

Check = Callable[[], Sequence[Problem]]


@dataclass(frozen=True)
class Start:
    """A start of TorchServe that is about to be made.

    Attributes:
        model_store: folder of the archives.
        run_dir: TorchServe's working directory.
        tmp: its own folder for temporary files; None where it could not be made.
        environment: what TorchServe will get.
        torchserve: its command; None where there is none.
        python: the interpreter that runs the workers.
        plan: None where planning failed, or its files could not be written: then all that needs none is checked.
        notes: what `rendering.environment` says about inherited variables.
        failed: what went wrong so far.
    """

    settings: Settings
    model_store: Path
    run_dir: Path
    tmp: Path | None
    environment: Mapping[str, str]
    torchserve: Path | None
    python: Path
    plan: Plan | None = None
    notes: Sequence[str] = ()
    failed: Sequence[ToolkitError] = ()


def preflight(start: Start) -> tuple[Problem, ...]:
    """Runs all checks.

    Returns:
        What they found, errors first, otherwise always in the same order. A check that cannot be run is a warning:
        it has found nothing wrong.
    """
    plan, environment = start.plan, start.environment
    folder = start.run_dir if start.run_dir.is_dir() else Path("/")  # where probes run

    with ThreadPoolExecutor(THREADS, "preflight") as pool:
        python = pool.submit(preflight_probes.versions, start.python, environment, folder)
        checks: list[tuple[str, Check]] = [
            ("torchserve", lambda: preflight_probes.torchserve(start.torchserve)),
            ("Java", lambda: preflight_probes.java(environment, folder)),
            ("the workers' Python", lambda: python.result()[1]),
            ("archives", lambda: preflight_archives.archives(plan, start.settings, start.model_store,
                                                             python.result()[0])),
            ("ports", lambda: preflight_pod.ports(start.settings)),
            ("the folder for temporary files", lambda: _temporary(start)),
            ("the key file", lambda: preflight_pod.key_file(start.settings, start.run_dir)),
            ("variables", lambda: preflight_pod.variables(environment, start.notes))]
        if plan:
            decided = plan
            checks += [
                ("CPUs", lambda: preflight_pod.cpus(decided, os.sched_getaffinity(0))),
                ("the CPU launcher", lambda: preflight_probes.launcher(decided, environment, folder)),
                ("IPEX", lambda: preflight_probes.ipex(decided, start.python, environment, python.result()[0],
                                                       folder))]
        running = [pool.submit(_guarded, name, check) for name, check in checks]
        found = [problem for each in running for problem in each.result()]
    # a broken archive has failed planning, and is found once more here
    every = dict.fromkeys([*map(from_error, start.failed), *found])
    return tuple(sorted(every, key=lambda problem: problem.severity != "error"))


def _temporary(start: Start) -> list[Problem]:
    if start.tmp is None:
        return []
    names = preflight_archives.names(start.plan, start.settings, start.model_store)
    unpacked = preflight_archives.unpacked([start.model_store / f"{name}.mar" for name in names])
    return preflight_pod.temporary(start.tmp, start.plan, unpacked)


def _guarded(name: str, check: Check) -> Sequence[Problem]:
    try:
        return check()
    except ToolkitError as error:
        return [from_error(error)]
    except Exception as error:  # a bug, or a machine that nobody thought of, must not keep a sound pod down
        return [Problem("warning", f"{name} could not be checked", f"{type(error).__name__}: {error}",
                        "none is known: watch the first start, and report this")]
