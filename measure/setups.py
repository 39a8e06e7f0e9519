"""The setups that can be compared, which of them a run takes, and which of them stand beside each other in memory.

Names are the user's interface: `stock`, `food/openvino-int8`, `food/ipex/tensor` … Nothing here starts anything.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from configs.errors import SettingsError
from measure import folders
from measure.folders import STUDENTS, Student

Kind = Literal["stock", "ours", "noop", "litserve", "in-process"]
FP32 = ("ipex", "onnxruntime", "openvino")
INT8 = ("openvino-int8", "onnxruntime-int8")
RUNTIMES = (*FP32, *INT8)
MODELS = {"food": "food_recognizer", "scorer": "image_scorer"}
# import names that building for a runtime and running it need, and the extra that brings them
NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "eager": ((), ""), "ipex": (("intel_extension_for_pytorch",), "pip install -e ."),
    "onnxruntime": (("onnx", "onnxruntime"), "pip install -e '.[onnx]'"),
    "onnxruntime-int8": (("onnx", "onnxruntime"), "pip install -e '.[onnx]'"),
    "openvino": (("openvino",), "pip install -e '.[openvino]'"),
    "openvino-int8": (("openvino", "nncf"), "pip install -e '.[openvino]'")}
PEERS = ("litserve",)
_TAKEN = {*MODELS, "stock", "intel", "noop", "litserve", "in-process"}  # what names of setups begin with
# Memory that a setup takes from the rest, in GiB, with two workers: measured as the fall of MemAvailable, rounded up.
# More cores mean more workers, so the estimate grows with them.
_GIB = {"stock": 1.5, "stock/eager": 1.5, "intel": 3.0, "intel/torchscript": 3.0, "noop": 1.0}
_GIB_OF_KIND = {"ours": 1.8, "litserve": 2.0, "in-process": 1.3}
_GIB_MORE = {"ipex": 0.7}  # the extension


@dataclass(frozen=True)
class Setup:
    """One thing that answers, and the body that it is asked with.

    Attributes:
        model: the folder's name, empty for those without a runtime of ours.
        runtime: empty likewise.
        body: "jpeg", "tensor" or "form".
        server: setups with the same server share its processes.
        description: what it is, in the report's words.
        teacher: of a student, its teacher's name, or empty where that is unknown; None for all that are no students.
    """

    name: str
    kind: Kind
    model: str
    runtime: str
    body: str
    server: str
    description: str
    teacher: str | None = None

    @property
    def gib(self) -> float:
        return _GIB.get(self.server) or _GIB_OF_KIND[self.kind] + _GIB_MORE.get(self.runtime, 0.0)


def catalogue(students: Path = STUDENTS) -> dict[str, Setup]:
    """Every setup by name, baselines first.

    Args:
        students: a folder of the students' model folders; it need not be there.

    Raises:
        SettingsError: a student's name means something else already.
    """
    def plain(name: str, kind: Kind, description: str) -> Setup:
        return Setup(name, kind, "food_recognizer", "", "jpeg", name, description)

    setups = [
        plain("stock", "stock", "TorchServe as it comes: image_classifier, TorchScript, nothing configured but ports"),
        plain("stock/eager", "stock", "the same with an eager model file instead of TorchScript"),
        plain("intel", "stock", "Intel's guide: image_classifier, eager model file, ipex_enable, cpu_launcher_enable"),
        plain("intel/torchscript", "stock", "the same with TorchScript, which ipex.optimize hands back unchanged"),
        plain("noop", "noop", "our configuration, a handler that answers {} at once"),
    ]
    pupils = _students(students)
    for runtime in ("eager", *RUNTIMES):
        for short, model in MODELS.items():
            name = f"{short}/{runtime}"
            setups.append(Setup(name, "ours", model, runtime, "jpeg", name, f"tscpu serve, {model} on {runtime}"))
        for student in pupils:
            name = f"{student.name}/{runtime}"
            setups.append(Setup(name, "ours", student.name, runtime, "jpeg", name,
                                f"tscpu serve, the student {student.name} on {runtime}", student.teacher))
        setups.append(Setup(f"food/{runtime}/tensor", "ours", "food_recognizer", runtime, "tensor", f"food/{runtime}",
                            f"the same server as food/{runtime}, asked with a uint8 tensor"))
        setups.append(Setup(f"litserve/{runtime}", "litserve", "food_recognizer", runtime, "form",
                            f"litserve/{runtime}",
                            f"LitServe with the same network, code, pins and allocator, {runtime}"))
        setups.append(Setup(f"in-process/{runtime}", "in-process", "food_recognizer", runtime, "jpeg",
                            f"in-process/{runtime}", "as many pinned processes as the server has workers, no server"))
    return {setup.name: setup for setup in setups}


def _students(folder: Path) -> list[Student]:
    """Every student, under a name that is nobody else's."""
    found = folders.students(folder)
    for student in found:
        if student.name in _TAKEN or (folders.MODELS / student.name / folders.FILE).is_file():
            raise SettingsError(f"a student cannot be called {student.name}", where=str(folder / student.name),
                                why="a setup or a model has that name already",
                                remedy="distill it again with another --name, or remove the folder")
    return found


def select(patterns: Sequence[str], peers: Sequence[str], students: Path = STUDENTS) -> list[Setup]:
    """The setups that a run takes.

    Args:
        patterns: names, or patterns such as "food/*"; none means all but eager's and the variants of the baselines.
        peers: other servers to compare with.
        students: as `catalogue` takes it.

    Raises:
        SettingsError: a name that nothing has, or an unknown peer.
    """
    known = catalogue(students)
    for peer in peers:
        if peer not in PEERS:
            raise SettingsError(f"there is no peer {peer!r}", where="--peer", remedy="one of " + ", ".join(PEERS))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SettingsError(f"there is no setup {pattern!r}", where="--setups", why="there are " + ", ".join(known),
                                remedy="give names, or patterns such as 'food/*'")
    if patterns:
        chosen = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
        wanted = {known[name].runtime for name in chosen if name.startswith("food/")}
        chosen += [f"litserve/{runtime}" for runtime in (*RUNTIMES, "eager") if peers and runtime in wanted]
    else:
        chosen = ["stock", "intel", "noop", *(name for name in known if known[name].runtime in RUNTIMES
                                              and (known[name].kind != "litserve" or peers))]
    return [setup for name, setup in known.items() if name in chosen]


def missing_packages(setup: Setup) -> str:
    """Why a setup cannot run here, in words; empty when what it needs is installed."""
    names, remedy = NEEDS.get(setup.runtime, ((), ""))
    if setup.kind == "stock":
        # the stock vision handlers import captum, which neither torchserve nor torch-model-archiver declares
        names, remedy = ("captum", "torchvision", "timm"), "pip install -e '.[demo,bench]'"
        if setup.name.startswith("intel"):
            names = (*names, "intel_extension_for_pytorch")
    if setup.kind == "litserve":
        names = (*names, "litserve", "python_multipart")
        remedy = " and ".join(filter(None, ("pip install -e '.[litserve]'", remedy)))
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed: {remedy}" if absent else ""


def groups(setups: Iterable[Setup], room_gib: float, workers: int) -> list[list[Setup]]:
    """Setups that are resident at the same time: every group holds the baselines and whole runtimes.

    A runtime is never split, since its setups are compared with each other; runtimes share a group as long as the
    memory allows, and each group has the baselines beside it, so that every ratio comes from the same minutes.

    Args:
        room_gib: memory that may be taken.
        workers: how many workers each server has.

    Raises:
        SettingsError: not even one runtime fits beside the baselines.
    """
    setups = list(setups)
    scale = max(1.0, workers / 2)
    baselines = [setup for setup in setups if not setup.runtime]
    runtimes = list(dict.fromkeys(setup.runtime for setup in setups if setup.runtime))
    of = {runtime: [setup for setup in setups if setup.runtime == runtime] for runtime in runtimes}
    found: list[list[Setup]] = []
    for runtime in runtimes:
        if found and needed_gib(found[-1] + of[runtime]) * scale <= room_gib:
            found[-1] = found[-1] + of[runtime]
        else:
            found.append(baselines + of[runtime])
    found = found or [baselines]
    for group in found:
        if (needs := needed_gib(group) * scale) > room_gib:
            raise SettingsError(
                "there is not enough memory for these setups side by side",
                where=", ".join(each.name for each in group),
                why=f"they take about {needs:.1f} GiB, and {room_gib:.1f} GiB may be taken",
                remedy="choose fewer with --setups, such as --setups stock,intel,food/openvino")
    return found


def needed_gib(setups: Iterable[Setup]) -> float:
    """Memory of these setups at once; one server counts once."""
    return sum({setup.server: setup.gib for setup in setups}.values())
