"""tscpu bench: how fast each way of serving is here, measured side by side, and PASS or SHORT for each target."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import FrameType

import typer

from scripts.console import BUILD, CACHE, err, errors_as_messages, out, print_json, progress, table

SUITES = ("handler",)


def bench(
    suite: str = typer.Option("handler", help="What is measured: handler."),
    rounds: int = typer.Option(5, min=1, help="How often each setup has its window."),
    warm_up: float = typer.Option(25.0, min=1, help="Seconds of load on each server before the first round."),
    window: float = typer.Option(8.0, min=1, help="Seconds of a window."),
    clients: int = typer.Option(8, min=1, help="Keep-alive connections of the load."),
    peer: list[str] = typer.Option([], help="Another server to compare with: litserve."),
    setups: str = typer.Option("", help="Only these, comma-separated; patterns such as 'food/*' too; see --list."),
    generator: str = typer.Option("auto", help="auto, wrk or locust. auto: Locust where it costs under 5 % of the pod "
                                               "at 200 requests/s, else wrk."),
    folder: Path = typer.Option(BUILD / "bench", "--out", help="Where the report, the JSON file and the archives go."),
    list_setups: bool = typer.Option(False, "--list", help="Only name the setups."),
    render: Path = typer.Option(None, help="Only render a recorded JSON file again, to standard output."),
    as_json: bool = typer.Option(False, "--json", help="Print the record as JSON instead of the report."),
) -> None:
    """Measure stock TorchServe, Intel's guide, this toolkit's runtimes and a peer side by side, into Markdown and JSON.

    Example: tscpu bench --setups stock,intel,food/ipex,noop --rounds 2

    Setups are interleaved: in each round every one has its window, and only figures of one round are divided by each
    other. All of it takes about an hour and wants the machine for itself.
    Exit code 0 if the run worked, whatever the targets say; 1 if an answer under load was wrong or a setup had no
    valid window; 2 if it could not run.
    """
    with errors_as_messages():
        from configs.errors import SettingsError
        from measure import report
        from measure.rounds import Options, Run, failures
        from measure.setups import catalogue

        if list_setups:
            out.print(table("Setups", ["name", "what"], [[each.name, each.description]
                                                         for each in catalogue().values()]))
            return
        if render is not None:
            out.print(report.render(json.loads(render.read_text())), markup=False, highlight=False)
            return
        if suite not in SUITES:
            raise SettingsError(f"there is no suite {suite!r}", where="--suite", remedy="one of " + ", ".join(SUITES))
        options = Options(suite, rounds, warm_up, window, clients, tuple(peer),
                          tuple(name.strip() for name in setups.split(",") if name.strip()), generator)
        signal.signal(signal.SIGTERM, _interrupt)
        with progress() as advance:
            run = Run(options, folder, CACHE, advance, lambda line: err.print(line, markup=False, highlight=False))
            try:
                record = run.run()
            except KeyboardInterrupt:
                err.print("interrupted; all servers are stopped" + (f"; what was measured: {run.file}"
                                                                    if run.file.is_file() else ""))
                raise typer.Exit(130) from None
        record["summary"] = report.summary(record)
        run.file.write_text(json.dumps(record, indent=1) + "\n")
        text = report.render(record)
        written = run.file.with_suffix(".md")
        written.write_text(text)
        if as_json:
            print_json(record)
        else:
            out.print(text, markup=False, highlight=False)
        err.print(f"written: {written} and {run.file}")
        wrong = failures(record)
        for line in wrong:
            err.print(f"error: {line}", markup=False, style="bold red")
        raise typer.Exit(1 if wrong else 0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run like Ctrl-C does: servers in sessions of their own would outlive it."""
    raise KeyboardInterrupt
