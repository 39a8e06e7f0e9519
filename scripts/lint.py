"""tscpu lint: the mistakes in a config.properties that somebody wrote by hand."""

from __future__ import annotations

from pathlib import Path

import typer

from scripts.console import err, errors_as_messages, out, print_json


def lint(
    file: Path = typer.Argument(help="A config.properties."),
    model_store: Path = typer.Option(None, help="Folder of the archives, to check names and versions against."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Find what TorchServe would ignore, misread or not start with; exit 1 if the file does not do what it says.

    Example: tscpu lint config.properties --model-store /models

    Errors are told from warnings and notes. Workers are counted against the threads that this pod may run.
    """
    with errors_as_messages():
        from dataclasses import asdict

        from configs.archives import read_manifest
        from configs.errors import SettingsError
        from configs.lint import lint as find

        try:
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise SettingsError("cannot read the file", where=str(file), why=error.strerror or "") from error
        archives = [read_manifest(path) for path in sorted(model_store.glob("*.mar"))] if model_store else None
        findings = find(text, file, _budget(), archives)
        if as_json:
            print_json([asdict(finding) for finding in findings])
        else:
            for finding in findings:
                _print(f"{file}:{finding.line}: {finding.severity}: {finding.message}\n    remedy: {finding.remedy}")
        kinds = [finding.severity for finding in findings]
        err.print(", ".join(f"{kinds.count(kind)} {kind}s" for kind in ("error", "warning", "note")), highlight=False)
        if "error" in kinds:
            raise typer.Exit(1)


def _print(text: str) -> None:
    out.print(text, markup=False, highlight=False)


def _budget() -> int | None:
    """Threads that workers may run here; None on a machine that does not say, as where there is no /proc."""
    from configs.errors import MachineError
    from scripts.pod import budget

    try:
        return budget()
    except MachineError as error:
        err.print(f"workers are not counted against this machine: {error.what}", markup=False, highlight=False)
        return None
