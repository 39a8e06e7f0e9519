"""tscpu build: from model folders to archives that have been loaded back."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from measure.folders import model_folder
from scripts.console import (
    ARTIFACTS,
    CACHE,
    MODEL_STORE,
    MODELS,
    err,
    errors_as_messages,
    out,
    print_json,
    progress,
    table,
)


def build(
    models: list[str] = typer.Argument(None, help="Names of folders in models/ or build/students/, or paths of your "
                                           "own; default: all of models/."),
    model_store: Path = typer.Option(MODEL_STORE, help="Where archives go."),
    runtime: str = typer.Option(None, help="Against model.yaml: eager, ipex, onnxruntime, onnxruntime-int8, openvino, "
                                            "openvino-int8, or auto: all that can be built here."),
    batch_size: int = typer.Option(None, min=1, help="Against model.yaml: the largest batch."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Build models and pack them with torch-model-archiver into MODEL_STORE/NAME.mar.

    Example: tscpu build food_recognizer

    An archive counts as built once TorchServe's own loader has read it in a process of its own and it has answered
    batches of 1, 2 and its largest size.
    """
    with errors_as_messages():
        rows = [build_one(folder, model_store, runtime, batch_size) for folder in folders(models)]
        if as_json:
            print_json(rows)
            return
        out.print(archives_table(rows))


def package(
    models: list[str] = typer.Argument(None, help="Names of folders in models/ or build/students/, or paths of your "
                                           "own; default: all of models/."),
    model_store: Path = typer.Option(MODEL_STORE, help="Where archives go."),
) -> None:
    """Pack models that are built already, after a change in handlers/ for instance.

    Example: tscpu package image_scorer
    """
    with errors_as_messages():
        from models.archive import package as pack
        from models.spec import read_spec

        for folder in folders(models):
            spec = read_spec(folder)
            err.print(f"packing and checking {spec.name} …")
            archive, measured = pack(ARTIFACTS / spec.name, spec, model_store)
            slowest = max(each.load_seconds for each in measured.values())
            out.print(f"{archive}  ({archive.stat().st_size / 1e6:.1f} MB, loads in {slowest:.0f} s)")


def build_one(folder: Path, model_store: Path, runtime: str | None, batch_size: int | None) -> dict[str, Any]:
    from models.archive import package as pack
    from models.export import build as export
    from models.spec import read_spec

    started = time.monotonic()
    with progress() as report:
        artifact = export(folder, ARTIFACTS, CACHE, report, runtime, batch_size)
        what = f"{artifact.name}: packing and loading back"
        report(what, 0, 1)
        archive, measured = pack(ARTIFACTS / artifact.name, read_spec(folder), model_store)
        report(what, 1, 1)
    return {"name": artifact.name, "runtime": artifact.runtime, "archive": str(archive),
            "bytes": archive.stat().st_size, "record": artifact.record, "seconds": time.monotonic() - started,
            "runtimes": {name: asdict(each) for name, each in measured.items()}}


def archives_table(rows: list[dict[str, Any]]) -> Table:
    """One line an archive and runtime."""
    cells = []
    for row in rows:
        parity = row["record"]["parity"]["runtimes"]
        fastest = min(row["runtimes"], key=lambda name: row["runtimes"][name]["inference_ms"])
        for name, record in parity.items():
            cost = row["runtimes"].get(name)
            cells.append([
                row["name"], name + (" (fastest)" if cost and len(parity) > 1 and name == fastest else ""),
                _parity(record), _quality(row), *(["-", "-"] if cost is None else
                [f"{cost['inference_ms']:.1f} ms", f"{cost['resident_bytes'] / 1e9:.2f} GB"])])
    return table("Archives", ["model", "runtime", "against eager fp32", "held-out photos", "one thread",
                              "a worker holds"], cells)


def _parity(record: dict[str, Any]) -> str:
    """The parity record in a few words."""
    if record.get("refused"):
        return "left out: " + "; ".join(record["refused"])
    if "classes" in record:
        classes = record["classes"]
        words = f"same answer {100 * classes['top1']:.1f} %, confident {100 * classes['top1_confident']:.1f} %"
    elif "scores" in record:
        words = f"scores move by {record['scores']['mae']:.2g}, Spearman {record['scores']['spearman']:.4f}"
    else:
        words = "random tensors only"
    part = record.get("photos", record["random_tensors"])
    return f"{words}; largest difference {part['relative']:.1e}"


def _shown(path: object) -> str:
    try:
        return str(Path(str(path)).relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _quality(row: dict[str, Any]) -> str:
    held_out = row["record"].get("head", {}).get("held_out")
    return f"MAE {held_out['mae']:.2f}, Spearman {held_out['spearman']:.3f}" if held_out else ""


def folders(names: list[str] | None) -> list[Path]:
    """Model folders by path, or by name in models/ or among the students; None or empty means all of models/."""
    if not names:
        return sorted(path.parent for path in MODELS.glob("*/model.yaml"))
    return [Path(name) if Path(name).is_dir() else model_folder(name) for name in names]
