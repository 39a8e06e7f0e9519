"""tscpu inspect: where every worker really stands, against the plan."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from scripts.console import RUN, errors_as_messages, out, print_json, table


def inspect(
    folder: Path = typer.Option(RUN, "--run-dir", help="The run folder of the server."),
    management: str = typer.Option("http://127.0.0.1:8081", help="The management address."),
    as_json: bool = typer.Option(False, "--json", help="Print the rows as JSON."),
) -> None:
    """List each worker's process, CPUs and threads, what the plan wanted, and OK or MISPLACED; exit 1 if any is not OK.

    Example: tscpu inspect

    The verdict comes from the management API's process ids and /proc, not from what a worker says of itself.
    """
    with errors_as_messages():
        from dataclasses import asdict

        from configs.plan import read_plan
        from serving.audit import audit
        from serving.client import Client

        result = audit(read_plan(folder / "plan.json"), Client(management=management), run_dir=folder)
        if as_json:
            print_json([asdict(row) for row in result.rows])
        else:
            out.print(audit_table(result))
        if not result.clean:
            raise typer.Exit(1)


def audit_table(result: object) -> Table:
    """One line a worker."""
    from configs.topology import format_cpu_list
    from serving.audit import Audit

    assert isinstance(result, Audit)
    return table("Workers", ["model", "pid", "CPUs it may run on", "planned", "torch threads", "tasks", "verdict",
                             "why"],
                 [[row.model, row.pid or "-", format_cpu_list(row.cpus), format_cpu_list(row.wanted),
                   "?" if row.torch_threads is None else row.torch_threads, row.tasks, row.verdict,
                   " ".join(part for part in (row.reason, row.remedy) if part)] for row in result.rows])
