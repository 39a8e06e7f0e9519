"""tscpu serve: plan, configuration, and TorchServe under the supervisor, in the foreground."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import typer

from scripts.console import RUN, err, errors_as_messages, out
from scripts.plan import SERVING, STORE


def serve(
    serving: Path = SERVING,
    model_store: Path = STORE,
    folder: Path = typer.Option(RUN, "--run-dir", help="Where this start's configuration, sockets and logs go."),
) -> None:
    """Plan for this pod, start TorchServe, and end all of it on Ctrl-C or SIGTERM.

    Example: tscpu serve

    GET /ready on the health port (8090) answers 200 once every planned model has all its workers.
    Exit code 0 after a stop that was asked for, 1 if TorchServe ended or could not serve.
    """
    with errors_as_messages():
        from configs.errors import ServerError
        from configs.rendering import environment, private_tmp, render
        from scripts.pod import plan_pod, reasons_table, torchserve_command
        from serving.supervisor import Supervisor

        command = torchserve_command()
        if command is None:
            raise ServerError("there is no torchserve", remedy="make setup")
        java = os.environ.get("JAVA_HOME")
        if not (Path(java, "bin", "java").is_file() if java else shutil.which("java")):
            raise ServerError("TorchServe needs Java, and there is none on PATH" + (" or in JAVA_HOME" if java else ""),
                              remedy="apt-get install openjdk-17-jre-headless")
        plan, settings = plan_pod(Path("/"), serving, model_store)
        _clear(private_tmp(folder.resolve()))
        rendered = render(plan, settings, model_store, folder)
        out.print(reasons_table(plan))
        variables, notes = environment(plan, rendered, os.environ, Path(sys.executable))
        for note in notes:
            err.print(note)
        supervisor = Supervisor(
            [str(command), "--start", "--foreground", "--ncs", "--ts-config", str(rendered.config),
             "--model-store", str(model_store.resolve()), "--log-config", str(rendered.log4j2)],
            variables, plan, settings.ports.inference, settings.ports.management, settings.ports.health,
            settings.drain.notice_seconds, settings.drain.grace_seconds,
            # Python and the JVM start before loading does
            startup_seconds=60 + max(model.startup_timeout_s for model in plan.models),
            run_dir=rendered.folder, echo=lambda line: print(line, flush=True), health_address=settings.bind,
            key_file=rendered.folder / "key_file.json" if settings.token_authorization else None)
        raise typer.Exit(supervisor.run())


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
