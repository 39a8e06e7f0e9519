"""Students of one teacher, side by side: each learns, is built for the same runtime as its teacher, judged on photos
that neither has seen, and timed on one pinned thread. The fastest that passes is handed over as a model folder.

What a student is, how it learns and when it passes live in `models`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml

from handlers.artifact import AUTO, Artifact
from handlers.errors import ArtifactError
from handlers.runtimes import open_runtime
from handlers.transforms import InputSpec, Preprocess
from measure.folders import files_digest
from measure.pareto import front
from measure.student_table import higher_is_better, points
from measure.timing import side_by_side, speedup
from models import datasets, export
from models.distillation import Training, threads, train
from models.gate import MaxDrop, Verdict, judge_classes, judge_scores
from models.lessons import (
    DegradedCrops,
    Lessons,
    PhotoFiles,
    Source,
    answers_of,
    canvas_of,
    prepare,
    student_input,
)
from models.networks import weights_path
from models.photos import read_photos
from models.spec import FILE, ModelSpec, read_spec
from models.students import Design, Doubles, Student, make_student

DEMO = "demo"
DEMO_SEED, DEMO_HELD_OUT_SEED, DEMO_HELD_OUT_CROPS = 11, 7, 120
Progress = Callable[[str, int, int], None]
Answers = Callable[[torch.Tensor], torch.Tensor]  # uint8 pixels [1, 3, S, S] → outputs [1, …]


@dataclass(frozen=True)
class Options:
    """What the user says.

    Attributes:
        model: the teacher's folder.
        data: "demo", or a folder of photos.
        labels: as models.photos.read_photos takes it.
        designs: the students, in the order they learn in.
        name: of the model that is handed over.
        fit: "crop" or "resize"; None: a crop for scores, a resize for classes.
        runtime: in which teacher and students are judged and timed; None takes the teacher's own.
        crops_per_photo: of the demo set.
        cores: threads that training may use.
    """

    model: Path
    data: str
    designs: Sequence[Design]
    name: str
    labels: str | None = None
    fit: str | None = None
    weights: str | None = None
    runtime: str | None = None
    training: Training = field(default_factory=Training)
    allowed: MaxDrop = field(default_factory=MaxDrop)
    crops_per_photo: int = 240
    cores: int = 1


@dataclass(frozen=True)
class Teacher:
    """The model to learn from, built and opened.

    Attributes:
        digest: of all that its answers come from.
    """

    built: Path
    runtime: str
    digest: str
    answers: Answers


@dataclass(frozen=True)
class Candidate:
    """A student that has learnt.

    Attributes:
        folder: its model folder; handed over only if it passes.
        built: its artifact.
        learnt: what training recorded.
    """

    design: Design
    folder: Path
    built: Path
    learnt: dict[str, Any]
    verdict: Verdict


class Run:
    """One run, in a folder that a later one finds again: the teacher's answers, checkpoints, built networks.

    Args:
        work: for all of that.
        cache: what fitting the teacher's head keeps, shared with `tscpu build`.
        students: where the student that passes goes.
    """

    def __init__(self, options: Options, work: Path, cache: Path, students: Path, progress: Progress) -> None:
        self.options, self.cache, self.students, self.progress = options, cache, students, progress
        self.work = work
        self.spec = read_spec(options.model)
        self.input = self.spec.input.resolved()
        self.labels = export.read_labels(options.model / self.spec.labels)[0] if self.spec.labels else ()
        self.fit = options.fit or ("resize" if self.labels else "crop")

    def run(self) -> dict[str, Any]:
        """Everything.

        Returns:
            The record: teacher, data, a row a candidate, which of them was handed over (None where none passed).

        Raises:
            ArtifactError: the teacher, the data or a student cannot be used.
        """
        with threads(self.options.cores):
            # what is wrong with data or students shows before a teacher is built, which may take minutes
            learn, held_out = self._sources()
            students = [self._student(design) for design in self.options.designs]
            teacher = self._teacher()
            exam = self._lessons(teacher, held_out, None, "the teacher's answers on held-out photos")
            self._check(exam)
            candidates = [self._candidate(*each, teacher, learn, held_out, exam) for each in students]
        self.progress("timing on one pinned thread", 0, 1)
        times = side_by_side([teacher.built, *(each.built for each in candidates)], teacher.runtime)
        self.progress("timing on one pinned thread", 1, 1)
        record = self._record(teacher, learn, held_out, candidates, times)
        handed = record["handed_over"]
        if handed is not None:
            self._hand_over(candidates[handed["index"]], record)
        (self.work / "report.json").write_text(json.dumps(record, indent=1) + "\n")
        return record

    def _sources(self) -> tuple[Source, Source]:
        """Photos to learn from, and held-out ones."""
        options, size = self.options, self.input.size
        if options.data == DEMO:
            if self.labels:
                raise ArtifactError("the demo's degradation set has scores and no classes", where="--data demo",
                                    why=f"{self.spec.name} is a recognizer", remedy="--data FOLDER of photos")
            seen = [name for name in datasets.PHOTOS if name not in datasets.HELD_OUT]
            return (DegradedCrops(seen, options.crops_per_photo, size, DEMO_SEED),
                    DegradedCrops(datasets.HELD_OUT, DEMO_HELD_OUT_CROPS, size, DEMO_HELD_OUT_SEED))
        photos = read_photos(Path(options.data), self.labels, options.labels)
        return (PhotoFiles([each for each in photos if not each.held_out], self.input),
                PhotoFiles([each for each in photos if each.held_out], self.input))

    def _student(self, design: Design) -> tuple[Student, InputSpec]:
        """A student that has not learnt yet, and how photos become its input."""
        student = make_student(design, len(self.labels), self.spec.network, self.options.model, self.input.mean,
                               self.input.std, self.options.training.seed, self.options.weights)
        return student, student_input(self.input, design.size, self.fit, student.mean, student.std)

    def _teacher(self) -> Teacher:
        """Built as `tscpu build` does it, unless that is done already."""
        folder, spec = self.options.model, self.spec
        runtime = self.options.runtime or (spec.runtime if spec.runtime != AUTO else "ipex")
        out = self.work / "teacher"
        stamp, digest = out / "stamp", _sources_digest(folder, spec, runtime)
        if not (stamp.is_file() and stamp.read_text() == digest):
            stamp.unlink(missing_ok=True)
            export.build(folder, out, self.cache, self.progress, runtime)
            stamp.write_text(digest)
        built = out / spec.name
        return Teacher(built, runtime, digest, _answers(built, Artifact.read(built), runtime, self.options.cores))

    def _lessons(self, teacher: Teacher, source: Source, canvas: InputSpec | None, what: str) -> Lessons:
        return prepare(source, teacher.answers, self.input, teacher.digest, canvas, self.work / "lessons",
                       self.progress, what)

    def _candidate(self, student: Student, seen: InputSpec, teacher: Teacher, learn: Source, held_out: Source,
                   exam: Lessons) -> Candidate:
        options, name = self.options, student.design.name
        lessons = self._lessons(teacher, learn, canvas_of(self.input, seen, self.fit), "the teacher's answers")
        folder = self.work / name
        learnt = train(student, lessons, options.training, folder / "checkpoint.pt", self.progress, name)
        model = self._write_model(folder / "model", student, seen)
        artifact = export.build(model, folder / "built", self.cache, self.progress, teacher.runtime)
        built = folder / "built" / artifact.name
        answers = _ask(held_out, _answers(built, artifact, teacher.runtime, options.cores), seen, self.progress,
                       f"{name}: held-out photos")
        learnt |= {"weights": student.weights, "photos": len(lessons), "fit": self.fit,
                   "options": asdict(options.training)}
        return Candidate(student.design, model, built, learnt, self._judge(exam, answers))

    def _check(self, exam: Lessons) -> None:
        assert exam.teacher is not None
        found, wanted = tuple(exam.teacher.shape[1:]), (len(self.labels),) if self.labels else ()
        if found != wanted:
            raise ArtifactError("a teacher gives one score an image, or a logit for each label",
                                where=str(self.options.model), why=f"it gives {list(found)} an image, and has "
                                                                   f"{len(self.labels)} labels")

    def _judge(self, exam: Lessons, answers: Doubles) -> Verdict:
        assert exam.teacher is not None
        teachers = exam.teacher.double().numpy()
        labels = None if exam.labels is None else exam.labels.numpy()
        if self.labels:
            return judge_classes(teachers, answers, labels, exam.groups, self.options.allowed)
        return judge_scores(teachers, answers.reshape(-1), labels, exam.groups, self.options.allowed)

    def _write_model(self, folder: Path, student: Student, seen: InputSpec) -> Path:
        """The student as a model folder, without provenance yet."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spec, origin = self.spec, self.options.model
        model: dict[str, Any] = {"name": self.options.name, "handler": spec.handler, "runtime": spec.runtime,
                                 "network": student.save(folder)}
        if (own := export.handler_file(spec, origin)) is not None:
            shutil.copy(own, folder)
        if spec.labels is not None:
            shutil.copy(origin / spec.labels, folder / "labels.json")
            model["labels"] = "labels.json"
        model["input"] = {**asdict(seen), "mean": list(seen.mean), "std": list(seen.std),
                          "background": list(seen.background)}
        for name in ("output", "batch", "tolerance"):
            if changed := getattr(spec, name).model_dump(exclude_defaults=True):
                model[name] = changed
        if spec.photos is not None:
            model["photos"] = str((origin / spec.photos).resolve())
        head = f"# A student of {spec.name}, written by `tscpu distill`; provenance.json says how it came about.\n"
        (folder / FILE).write_text(head + yaml.safe_dump(model, sort_keys=False))
        return folder

    def _record(self, teacher: Teacher, learn: Source, held_out: Source, candidates: Sequence[Candidate],
                times: list[list[float]]) -> dict[str, Any]:
        milliseconds = [round(float(np.median(each)), 3) for each in times]
        rows = [{"name": each.design.name, "ms": ms, "speedup": speedup(times[0], own).to_dict(),
                 "gate": each.verdict.to_dict(), "learnt": each.learnt}
                for each, ms, own in zip(candidates, milliseconds[1:], times[1:], strict=True)]
        passed = [index for index, each in enumerate(candidates) if each.verdict.passed]
        best = min(passed, key=lambda index: milliseconds[index + 1], default=None)
        record: dict[str, Any] = {
            "teacher": {"name": self.spec.name, "version": self.spec.version, "runtime": teacher.runtime,
                        "digest": teacher.digest, "ms": milliseconds[0]},
            "data": {"source": self.options.data if self.options.data == DEMO else "photos", "learn": learn.key,
                     "held_out": held_out.key, "photos": len(learn), "held_out_photos": len(held_out),
                     "labelled": held_out.labelled},
            "allowed": asdict(self.options.allowed), "torch": torch.__version__, "candidates": rows,
            "handed_over": None if best is None else {"index": best, "name": self.options.name}}
        on_front = front(points(record), higher_is_better(record))
        for row, on in zip((record["teacher"], *rows), on_front, strict=True):
            row["pareto"] = on
        return record

    def _hand_over(self, chosen: Candidate, record: dict[str, Any]) -> None:
        """Copies the model folder into place as a whole, with where it comes from."""
        index = record["handed_over"]["index"]
        provenance = {key: record[key] for key in ("teacher", "data", "allowed", "torch")}
        provenance |= {"student": record["candidates"][index]}
        self.students.mkdir(parents=True, exist_ok=True)
        # a name with a dot is no student yet
        with tempfile.TemporaryDirectory(dir=self.students, prefix=".new-") as name:
            fresh = Path(name) / self.options.name
            shutil.copytree(chosen.folder, fresh)
            (fresh / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
            export.put(fresh, self.students / self.options.name)


def _answers(built: Path, artifact: Artifact, runtime: str, cores: int) -> Answers:
    return answers_of(open_runtime(runtime, built / artifact.files[runtime].file, cores, artifact.input),
                      artifact.input)


def _ask(source: Source, answer: Answers, spec: InputSpec, progress: Progress, what: str) -> Doubles:
    """A built network's outputs for all of a source, as it is served: [N, …]."""
    preprocess, rows = Preprocess(spec), []
    with torch.inference_mode():
        for index, item in enumerate(source.items()):
            if index % 16 == 0:
                progress(what, index, len(source))
            rows.append(answer(preprocess.pixels(item.image))[0].double().numpy())
    progress(what, len(source), len(source))
    return np.stack(rows)


def _sources_digest(folder: Path, spec: ModelSpec, runtime: str) -> str:
    """Of all that a teacher's answers come from: its folder, its weights, and the code that builds it."""
    paths = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    if spec.network.weights is not None:
        paths.add(weights_path(spec.network.weights, folder))
    if spec.head is not None:
        paths.add(folder / cast(Path, spec.head.train or spec.head.file))
    here = Path(export.__file__).parent
    paths |= {here / name for name in ("networks.py", "datasets.py", "formats.py")}
    paths |= {here.parent / "handlers" / name for name in ("svr.py", "transforms.py")}
    return files_digest(f"{runtime} {torch.__version__}", paths)[:16]
