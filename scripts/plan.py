"""tscpu plan and tscpu config: what this pod should run, why, and the files that say so to TorchServe."""

from __future__ import annotations

from pathlib import Path

import typer

from scripts.console import MODEL_STORE, RUN, errors_as_messages, out, print_json

SERVING = typer.Option(None, help="serving.yaml; without one, every archive is served with the defaults.")
STORE = typer.Option(MODEL_STORE, help="Folder of the archives.")
TORCHSERVE = typer.Option(None, "--torchserve", metavar="VERSION",
                          help="Plan for this TorchServe version instead of the installed one.")


def plan(
    serving: Path = SERVING,
    model_store: Path = STORE,
    machine: Path = typer.Option(Path("/"), help="A recorded machine instead of this one: a folder with its /proc "
                                                 "and /sys."),
    torchserve: str = TORCHSERVE,
    explain: bool = typer.Option(False, "--explain", help="One table with a reason for every number."),
    as_json: bool = typer.Option(False, "--json", help="Print plan.json."),
) -> None:
    """Show workers, threads and CPUs for this pod.

    Example: tscpu plan --explain
    """
    with errors_as_messages():
        from scripts.pod import plan_pod, reasons_table, summary_table

        decided, _ = plan_pod(machine, serving, model_store, torchserve)
        if as_json:
            print_json(decided.to_dict())
        elif explain:
            out.print(reasons_table(decided))
        else:
            out.print(summary_table(decided))
            out.print("`tscpu plan --explain` gives the reason of each number.")


def config(
    serving: Path = SERVING,
    model_store: Path = STORE,
    folder: Path = typer.Option(RUN, "--out", help="Where the files go."),
    torchserve: str = TORCHSERVE,
) -> None:
    """Write config.properties, plan.json, log4j2.xml and metrics.yaml for this pod.

    Example: tscpu config --out /tmp/pod
    """
    with errors_as_messages():
        from configs.rendering import render
        from scripts.pod import plan_pod

        decided, settings = plan_pod(Path("/"), serving, model_store, torchserve)
        rendered = render(decided, settings, model_store, folder)
        for path in (rendered.config, rendered.plan, rendered.log4j2, rendered.metrics):
            out.print(str(path))
