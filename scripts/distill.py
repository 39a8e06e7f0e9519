"""tscpu distill: lighter students of a model, which are handed over only if nothing got worse."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from measure.folders import STUDENTS
from scripts.console import BUILD, CACHE, err, errors_as_messages, out, print_json, progress, table

DISTILL = BUILD / "distill"


def distill(
    model: str = typer.Argument(help="The teacher: a folder in models/, or the path of your own."),
    data: str = typer.Option(..., help="A folder of photos, or demo: the synthetic-degradation set."),
    students: str = typer.Option(..., "--student", "--students", help=
                                 "Comma-separated: a timm architecture; ARCH:STAGES, for a scorer of its first stages "
                                 "only; FILE.py:FUNCTION, a module of your own; each also with @SIZE."),
    sizes: str = typer.Option("", "--size", "--sizes", help="Comma-separated input sizes in pixels, for students "
                                                            "without @SIZE; default: the teacher's."),
    labels: str = typer.Option(None, help="folders, none (the teacher labels all), or a CSV file with file,label and "
                                          "perhaps split; default: DIR/labels.csv, or folders that are classes."),
    fit: str = typer.Option(None, help="crop: the centre of the teacher's pixels, never resized again (default for "
                                       "scorers); resize: all of it, smaller (default for recognizers)."),
    loss: str = typer.Option("dist", help="dist (arXiv 2205.10536), kd (Hinton), or mse."),
    beta: float = typer.Option(2.0, min=0, help="DIST: weight of the correlation between a sample's classes; for "
                                                "scores, over the batch."),
    gamma: float = typer.Option(2.0, min=0, help="DIST: weight of the correlation between a class's samples."),
    tau: float = typer.Option(1.0, min=1e-3, help="DIST: temperature."),
    temperature: float = typer.Option(4.0, min=1e-3, help="kd: temperature."),
    label_weight: float = typer.Option(None, min=0, help="Weight of the labels: 1 for classes; for scores their "
                                                         "share against the teacher's, 0.5."),
    epochs: int = typer.Option(4, min=1, help="Passes over the photos."),
    batch: int = typer.Option(32, min=2, help="Photos of a step."),
    learning_rate: float = typer.Option(None, min=0, help="Default: 1e-4 from pretrained weights, 1e-3 from random."),
    mirror: bool = typer.Option(True, help="Mirror photos at random. Nothing is ever rotated or resized."),
    weights: str = typer.Option(None, help="The students' first weights: random, timm (downloads), package:NAME or a "
                                           "file; default: what is installed, or the teacher's own."),
    seed: int = typer.Option(0, min=0),
    max_drop: str = typer.Option("", help="What a student may lose: mae=0.02,spearman=0.01 (relative, absolute) or "
                                          "accuracy=0.5 (points)."),
    runtime: str = typer.Option(None, help="In which teacher and students are judged and timed; default: the "
                                           "teacher's."),
    crops: int = typer.Option(240, min=12, help="demo: crops of each photo."),
    name: str = typer.Option(None, help="Of the model that is handed over; default: MODEL_student."),
    folder: Path = typer.Option(None, "--out", help="Checkpoints, report and picture; default: build/distill/MODEL."),
    to: Path = typer.Option(STUDENTS, help="Where the student that passes goes."),
    as_json: bool = typer.Option(False, "--json", help="Print the record as JSON."),
) -> None:
    """Train lighter students of a model, and hand over the fastest that is no worse.

    Example: tscpu distill image_scorer --data demo --students tf_efficientnet_lite0:4 --sizes 192,224

    Each student learns the teacher's answers and the labels (linear probe, then all of it), is built for the same
    runtime, judged on photos that neither has seen, and timed on one pinned thread beside its teacher. A run that was
    killed goes on where it was when the same command is given again.
    Exit code 0 if a student was handed over, 1 if none is within the gate, 2 if it could not run.
    """
    with errors_as_messages():
        from handlers.errors import ArtifactError
        from measure.candidates import Options, Run
        from models.distillation import Training
        from models.gate import MaxDrop
        from models.lessons import FITS
        from models.losses import LOSSES, LossOptions
        from models.spec import read_spec
        from scripts.build import folders
        from scripts.pod import budget

        for option, value, known in (("--loss", loss, LOSSES), ("--fit", fit, FITS)):
            if value is not None and value not in known:
                raise ArtifactError(f"{value!r} is not known", where=option, remedy="one of " + ", ".join(known))
        teacher = folders([model])[0]
        spec = read_spec(teacher)
        training = Training(LossOptions(loss, beta, gamma, tau, temperature, label_weight), epochs, batch,
                            learning_rate, mirror=mirror, seed=seed)
        options = Options(teacher, data, designs(students, sizes, spec.input.size), name or f"{spec.name}_student",
                          labels, fit, weights, runtime, training, MaxDrop.parse(max_drop), crops, budget())
        work = folder or DISTILL / spec.name
        with progress() as advance:
            record = Run(options, work, CACHE, to, advance).run()
        _show(record, work, to, as_json)
        raise typer.Exit(0 if record["handed_over"] else 1)


def designs(students: str, sizes: str, default: int) -> list[Any]:
    """The students: each that has no size of its own in every size."""
    from handlers.errors import ArtifactError
    from models.students import Design

    def number(text: str) -> int:
        if not text.isdigit() or not 8 <= int(text) <= 4096:
            raise ArtifactError("a size is a number of pixels from 8 to 4096", where="--sizes", why=repr(text))
        return int(text)

    names = [each.strip() for each in students.split(",") if each.strip()]
    wanted = [number(each.strip()) for each in sizes.split(",") if each.strip()] or [default]
    if not names:
        raise ArtifactError("no student is given", where="--students", remedy="--students tf_efficientnet_lite0")
    pairs = itertools.chain.from_iterable(
        [(base, number(own))] if at else [(base, size) for size in wanted]
        for base, at, own in (each.rpartition("@") if "@" in each else (each, "", "") for each in names))
    return [Design.parse(base, size) for base, size in dict.fromkeys(pairs)]


def _show(record: dict[str, Any], work: Path, to: Path, as_json: bool) -> None:
    from measure.student_table import draw, markdown

    picture, text = work / "pareto.png", work / "pareto.md"
    draw(record, picture)
    text.write_text(markdown(record))
    if as_json:
        print_json(record)
    else:
        out.print(candidates_table(record))
    err.print(f"written: {picture}, {text} and {work / 'report.json'}", highlight=False)
    handed = record["handed_over"]
    if handed is None:
        err.print("[bold red]No student is within the gate, and none was handed over.[/] More epochs or photos, a "
                  "larger student, or --max-drop for what you can accept.", highlight=False)
    else:
        chosen = record["candidates"][handed["index"]]
        err.print(f"[bold green]{chosen['name']} is no worse and {chosen['speedup']['median']:.1f} times as fast:[/] "
                  f"{to / handed['name']}\nNext: tscpu build {handed['name']} --runtime auto", highlight=False)


def candidates_table(record: dict[str, Any]) -> Table:
    """Every candidate under its teacher; the Pareto front has a star."""
    from measure.student_table import rows

    columns, lines = rows(record)
    against = "labels" if record["data"]["labelled"] else "the teacher's answers"
    title = (f"Students of {record['teacher']['name']} on {record['teacher']['runtime']}, held-out photos against "
             f"{against} (with 95 % intervals of what is lost)")
    return table(title, columns, lines)
