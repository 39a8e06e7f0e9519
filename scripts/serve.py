"""tscpu serve: plan, configuration, preflight, and TorchServe under the supervisor, in the foreground."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from scripts.console import RUN, err, errors_as_messages, out, table
from scripts.plan import SERVING, STORE

if TYPE_CHECKING:
    from configs.rendering import Rendered
    from serving.preflight import Start
    from serving.preflight_problem import Problem


def serve(
    serving: Path = SERVING,
    model_store: Path = STORE,
    folder: Path = typer.Option(RUN, "--run-dir", help="Where this start's configuration, sockets and logs go."),
    check: bool = typer.Option(False, "--check", help="Plan, write the configuration, look for everything that would "
                                                      "fail, and end: 0 if nothing would, else 1."),
) -> None:
    """Plan for this pod, look for what would fail, start TorchServe, and end all of it on Ctrl-C or SIGTERM.

    Example: tscpu serve

    GET /ready on the health port (8090) answers 200 once every planned model has all its workers.
    Exit code 0 after a stop that was asked for, 1 if TorchServe ended, could not serve, or would not have.
    """
    with errors_as_messages():
        from serving.preflight import preflight
        from serving.supervisor import Supervisor

        start, rendered = _prepare(serving, model_store, folder)
        if start.plan and not check:
            from scripts.pod import reasons_table

            out.print(reasons_table(start.plan))
        err.print("preflight …")
        began = time.monotonic()
        with nullcontext() if check else _stoppable():
            problems = preflight(start)
        _show(problems, time.monotonic() - began)
        wrong = any(problem.severity == "error" for problem in problems)
        if check or wrong or rendered is None or start.plan is None:
            raise typer.Exit(1 if wrong else 0)
        plan, settings = start.plan, start.settings
        supervisor = Supervisor(
            [str(start.torchserve), "--start", "--foreground", "--ncs", "--ts-config", str(rendered.config),
             "--model-store", str(model_store.resolve()), "--log-config", str(rendered.log4j2)],
            dict(start.environment), plan, settings.ports.inference, settings.ports.management, settings.ports.health,
            settings.drain.notice_seconds, settings.drain.grace_seconds,
            # Python and the JVM start before loading does
            startup_seconds=60 + max(model.startup_timeout_s for model in plan.models),
            run_dir=rendered.folder, echo=lambda line: print(line, flush=True), health_address=settings.bind,
            key_file=rendered.folder / "key_file.json" if settings.token_authorization else None)
        raise typer.Exit(supervisor.run())


def _prepare(serving: Path | None, model_store: Path, folder: Path) -> tuple[Start, Rendered | None]:
    """Plans and writes the configuration. What goes wrong with that is the preflight's first finding, not the only one.

    Raises:
        SettingsError: the serving file is wrong, so that nothing is known about what is wanted.
        ServerError: a server is running from that folder.
    """
    from configs.errors import SettingsError, ToolkitError
    from configs.rendering import environment, private_tmp, render
    from configs.settings import read_settings
    from scripts.pod import plan_pod, torchserve_command
    from serving.preflight import Start

    settings, folder = read_settings(serving), folder.resolve()
    python = Path(sys.executable)
    failed: list[ToolkitError] = []
    tmp = plan = rendered = None
    variables, notes = dict(os.environ), list[str]()
    try:
        tmp = private_tmp(folder)
        _clear(tmp)
    except SettingsError as error:
        failed.append(error)
    except OSError as error:
        failed.append(SettingsError("the run folder cannot be written", where=str(error.filename or folder),
                                    why=error.strerror or str(error),
                                    remedy="use another --run-dir, or mount a volume there (emptyDir)"))
    try:
        decided, _ = plan_pod(Path("/"), serving, model_store)
        if tmp:
            rendered = render(decided, settings, model_store, folder)
            variables, notes = environment(decided, rendered, os.environ, python)
            plan = decided
    except ToolkitError as error:
        failed.append(error)
    return Start(settings, model_store, folder, tmp, variables, torchserve_command(), python, plan, notes,
                 failed), rendered


@contextmanager
def _stoppable() -> Iterator[None]:
    """A stop signal ends the preflight at once, as asked for: nothing runs yet but probes, which end by
    themselves.

    Without a handler, the first process of a container would not get SIGTERM at all.
    """
    def stop(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)  # threads wait for their probes

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(problems: Sequence[Problem], seconds: float) -> None:
    errors = sum(problem.severity == "error" for problem in problems)
    title = f"Preflight: {errors} errors, {len(problems) - errors} warnings ({seconds:.1f} s)"
    out.print(table(title, ["", "what", "why", "remedy"],
                    [[each.severity, each.what, each.why, each.remedy] for each in problems]) if problems else title)


def _clear(tmp: Path) -> None:
    """Removes what a killed JVM left: unpacked archives pile up otherwise.

    Raises:
        ServerError: a server is running from there.
    """
    from configs.errors import ServerError
    from serving.processes import command_line

    pid_file = tmp / ".model_server.pid"
    pid = pid_file.read_text().strip() if pid_file.is_file() else ""
    if pid.isdigit() and "org.pytorch.serve.ModelServer" in command_line(int(pid)):
        raise ServerError("a server is running from this folder already", where=str(tmp.parent), why=f"pid {pid}",
                          remedy="stop it, or give this one another --run-dir")
    shutil.rmtree(tmp / "models", ignore_errors=True)
