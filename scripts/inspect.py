"""tscpu inspect: where every worker really stands, against the plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.table import Table

from scripts.console import RUN, errors_as_messages, out, print_json, table

if TYPE_CHECKING:
    from serving.audit import Audit
    from serving.throttling import Throttled


def inspect(
    folder: Path = typer.Option(RUN, "--run-dir", help="The run folder of the server."),
    management: str = typer.Option("http://127.0.0.1:8081", help="The management address."),
    as_json: bool = typer.Option(False, "--json", help="Print the rows and the throttling as JSON."),
    watch: bool = typer.Option(False, "--watch", help="Look again and again, until Ctrl-C."),
    every: float = typer.Option(2.0, min=0.1, help="Seconds between looks, with --watch."),
) -> None:
    """List each worker's process, CPUs and threads, what the plan wanted, and a verdict; exit 1 if any is not OK.

    Example: tscpu inspect --watch

    The verdict comes from the management API's process ids and /proc, not from what a worker says of itself: MISPLACED
    (not on its slot), ACROSS SOCKETS, SMT SIBLINGS (on a hardware thread of another worker's core), OVERSUBSCRIBED
    (more threads than cores), TOO MANY THREADS (more than planned compute), NOT READY or MISSING. Under a quota, a
    line says how often and how long it has stopped the pod's threads since the last look.
    """
    with errors_as_messages():
        from configs.plan import read_plan
        from configs.topology import read_topology
        from serving.audit import audit
        from serving.client import Client
        from serving.throttling import look

        plan, topology = read_plan(folder / "plan.json"), read_topology()
        with Client(management=management) as client:
            def once() -> tuple[Audit, Throttled | None]:
                return audit(plan, client, run_dir=folder, topology=topology), look(plan, folder)

            show = _print_json if as_json else _print
            result = _watch(once, show, every) if watch else once()
            if not watch:
                show(*result)
        if not result[0].clean:
            raise typer.Exit(1)


def _watch(once: Callable[[], tuple[Audit, Throttled | None]], show: Callable[[Audit, Throttled | None], None],
           every: float) -> tuple[Audit, Throttled | None]:
    """Shows one look after the other; returns the last when the user has seen enough."""
    result = once()
    with suppress(KeyboardInterrupt):
        while True:
            if out.is_terminal:
                out.clear()
            show(*result)
            time.sleep(every)
            result = once()
    return result


def _print(result: Audit, throttled: Throttled | None) -> None:
    lines = [] if throttled is None else [throttled.sentence]
    out.print(Group(audit_table(result), *lines))


def _print_json(result: Audit, throttled: Throttled | None) -> None:
    print_json({"clean": result.clean, "workers": [asdict(row) for row in result.rows],
                "throttling": None if throttled is None else asdict(throttled)})


def audit_table(result: Audit) -> Table:
    """One line a worker."""
    from configs.topology import format_cpu_list

    return table("Workers", ["model", "pid", "CPUs it may run on", "planned", "torch threads", "computing", "tasks",
                             "verdict", "why"],
                 [[row.model, row.pid or "-", format_cpu_list(row.cpus), format_cpu_list(row.wanted),
                   "?" if row.torch_threads is None else row.torch_threads, row.computing, row.tasks, row.verdict,
                   "; ".join(part for part in (row.reason, row.remedy) if part)] for row in result.rows])
