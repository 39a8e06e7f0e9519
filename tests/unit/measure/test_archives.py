"""The run's own archives: whose folder is built, and when it is built again."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from configs.errors import ServerError
from measure import archives
from measure.folders import model_folder
from measure.setups import catalogue
from tests.unit.measure.made_up import student

RUNTIMES = {"eager": {}, "ipex": {}}


class Builder:
    """Stands in for the process that builds."""

    def __init__(self, name: str = "swift") -> None:
        self.name, self.built = name, list[tuple[str, Path]]()

    def __call__(self, what: str, folder: Path, runtime: str, artifacts: Path, cache: Path, store: Path) -> None:
        assert what == "model"
        self.built.append((runtime, folder))
        store.mkdir(parents=True, exist_ok=True)
        artifact = {"files": RUNTIMES, "record": {"parity": {"runtimes": {"openvino": {"refused": ["too far"]}}}}}
        with zipfile.ZipFile(store / f"{self.name}.mar", "w") as archive:
            archive.writestr("artifact.json", json.dumps(artifact))


@pytest.fixture
def students(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = tmp_path / "students"
    student(own, "swift", {"teacher": {"name": "image_scorer"}})
    monkeypatch.setattr(archives, "model_folder", lambda name: model_folder(name, own))
    return own


def test_a_student_is_built_from_its_folder_until_nothing_has_changed(students: Path, tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    monkeypatch.setattr(archives, "_run", builder)
    store, setups = archives.Store(tmp_path / "work", tmp_path / "cache"), catalogue(students)
    for _ in range(2):
        store.build(setups["swift/ipex"])
    assert builder.built == [("auto", students / "swift")]
    assert (store.ours("swift", "ipex") / "artifact.json").is_file()
    (students / "swift" / "student.safetensors").write_bytes(b"weights")
    store.build(setups["swift/ipex"])
    store.build(setups["swift/eager"])
    assert builder.built[1:] == [("auto", students / "swift"), ("eager", students / "swift")]
    with pytest.raises(ServerError, match="swift was not built for openvino"):
        store.build(setups["swift/openvino"])


def test_a_folder_whose_model_has_another_name_is_refused(students: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_run", Builder("slow"))
    with pytest.raises(ServerError, match="another name than the folder"):
        archives.Store(tmp_path / "work", tmp_path / "cache").build(catalogue(students)["swift/ipex"])
