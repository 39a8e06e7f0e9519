"""What `configs.archives` promises: what planning needs of an archive, or a message that says what is wrong with it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from made_up import archive, files

from configs.archives import (
    DEFAULT_INFERENCE_MS,
    DEFAULT_LOAD_SECONDS,
    DEFAULT_RESIDENT_BYTES,
    Built,
    ServedModel,
    read_archive,
    read_manifest,
    read_model_store,
)
from configs.errors import SettingsError

MEASURED = {"resident_bytes": 884584448, "load_seconds": 9.73, "inference_ms": 24.5}


def test_archive_with_its_measurements(tmp_path: Path) -> None:
    path = archive(tmp_path, "scorer", "2.1", {"ipex": MEASURED},
                   {"runtime": "ipex", "batch_size": 8, "max_batch_delay_ms": 20, "files": files("ipex")})
    assert read_archive(path) == ServedModel(
        name="scorer", version="2.1", archive="scorer.mar", runtime="ipex", batch_size=8, max_batch_delay_ms=20,
        resident_bytes=884584448, load_seconds=9.73, inference_ms=24.5, measured=True,
        built=(Built("ipex", "intel_extension_for_pytorch", "avx2", 884584448, 9.73, 24.5, True),))


SEVERAL = {"runtime": "auto", "batch_size": 1, "max_batch_delay_ms": 1, "files": files("openvino", "eager", "ipex")}


def test_an_archive_for_several_runtimes_keeps_what_was_measured_apart(tmp_path: Path) -> None:
    costs = {"eager": MEASURED, "openvino": MEASURED | {"inference_ms": 9}}
    found = read_archive(archive(tmp_path, measured=costs, artifact=SEVERAL))
    assert (found.runtime, found.measured) == ("auto", False)  # nobody has chosen yet
    assert [(each.runtime, each.inference_ms, each.measured) for each in found.built] == [
        ("eager", 24.5, True), ("ipex", DEFAULT_INFERENCE_MS, False), ("openvino", 9, True)]
    chosen = found.served_by(found.built[2])
    assert (chosen.runtime, chosen.inference_ms, chosen.measured) == ("openvino", 9, True)


def test_an_archive_with_a_runtime_of_its_own_is_judged_by_that(tmp_path: Path) -> None:
    costs = {"eager": MEASURED, "openvino": MEASURED | {"inference_ms": 9}}
    found = read_archive(archive(tmp_path, measured=costs, artifact=SEVERAL | {"runtime": "openvino"}))
    assert (found.runtime, found.inference_ms, found.measured) == ("openvino", 9, True)


def test_an_archive_without_a_file_for_its_own_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="this archive cannot be served") as caught:
        read_archive(archive(tmp_path, artifact=SEVERAL | {"runtime": "onnxruntime"}))
    assert "no file for its own runtime 'onnxruntime'" in caught.value.why


def test_without_a_sidecar_all_is_assumed(tmp_path: Path) -> None:
    found = read_archive(archive(tmp_path))
    assert not found.measured
    assert (found.resident_bytes, found.load_seconds, found.inference_ms) == (
        DEFAULT_RESIDENT_BYTES, DEFAULT_LOAD_SECONDS, DEFAULT_INFERENCE_MS)


@pytest.mark.parametrize(("change", "words"), [
    ({"resident_bytes": 0}, "above zero"), ({"load_seconds": -1}, "above zero"), ({"inference_ms": 0}, "above zero"),
    ({"inference_ms": float("nan")}, "above zero"), ({"load_seconds": float("inf")}, "above zero"),
    ({"inference_ms": "fast"}, "could not convert"), ({"resident_bytes": None}, "NoneType")])
def test_a_sidecar_with_a_bad_number_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = archive(tmp_path, measured={"eager": MEASURED | change})
    with pytest.raises(SettingsError, match="cannot read what was measured") as caught:
        read_archive(path)
    assert words in caught.value.why
    assert caught.value.where == str(tmp_path / "a.measured.json")


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"eager": {}}', '{"eager": 3}',
                                     '{"eager": {"resident_bytes": 1}}', json.dumps(MEASURED)])
def test_a_broken_sidecar_is_named(tmp_path: Path, content: str) -> None:
    path = archive(tmp_path)
    (tmp_path / "a.measured.json").write_text(content)
    with pytest.raises(SettingsError, match="cannot read what was measured"):
        read_archive(path)


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 0.5, -1])
def test_a_truncated_archive_is_refused(tmp_path: Path, keep: float) -> None:
    path = archive(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:int(len(whole) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(SettingsError, match="this archive cannot be served") as caught:
        read_archive(path)
    assert caught.value.where == str(path)
    assert "tscpu build" in caught.value.remedy


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"runtime"', b'"runtimx"'))
    with pytest.raises(SettingsError, match="this archive cannot be served"):
        read_archive(path)


def test_an_archive_of_other_tools_is_refused_but_its_manifest_read(tmp_path: Path) -> None:
    path = archive(tmp_path, "resnet", "1.0", artifact={})
    assert read_manifest(path) == ("resnet", "1.0")
    with pytest.raises(SettingsError, match="this archive cannot be served") as caught:
        read_archive(path)
    assert "artifact.json" in caught.value.why


@pytest.mark.parametrize(("manifest", "words"), [
    ("", "Expecting value"), ("[]", "list indices"), ("{}", "it does not say 'model'"),
    ('{"model": {}}', "it does not say 'modelName'"),
    ('{"model": {"modelName": "a"}}', "it does not say 'modelVersion'"),
    ('{"model": {"modelName": "a b", "modelVersion": "1"}}', "modelName 'a b'"),
    ('{"model": {"modelName": "a", "modelVersion": "1 \\"x"}}', "modelVersion")])
def test_a_bad_manifest_is_refused(tmp_path: Path, manifest: str, words: str) -> None:
    path = tmp_path / "a.mar"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("MAR-INF/MANIFEST.json", manifest)
    with pytest.raises(SettingsError, match="this archive cannot be served") as caught:
        read_manifest(path)
    assert words in caught.value.why


@pytest.mark.parametrize("artifact", [
    {"runtime": "eager"}, {"runtime": "eager", "batch_size": "x", "max_batch_delay_ms": 1},
    {"batch_size": 1, "max_batch_delay_ms": 1, "files": files("eager")},
    {"runtime": "eager", "batch_size": 1, "max_batch_delay_ms": 1, "file": "model.pt"},
    {"runtime": "eager", "batch_size": 1, "max_batch_delay_ms": 1, "files": ["eager"]},
    {"runtime": "eager", "batch_size": 1, "max_batch_delay_ms": 1, "files": {"eager": "model.pt"}},
    {"runtime": "eager", "batch_size": 1, "max_batch_delay_ms": 1, "files": {"eager": {"file": "model.pt"}}}])
def test_a_bad_artifact_is_refused(tmp_path: Path, artifact: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="this archive cannot be served"):
        read_archive(archive(tmp_path, artifact=artifact))


def test_a_renamed_archive_is_refused(tmp_path: Path) -> None:
    """Its settings are found by the model's name, and TorchServe registers it under that."""
    with pytest.raises(SettingsError, match="this archive holds the model 'a'") as caught:
        read_archive(archive(tmp_path, "a", file="b.mar"))
    assert caught.value.remedy == "call it a.mar"


def test_p12_a_file_name_that_the_configuration_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="this archive cannot be served"):
        read_manifest(archive(tmp_path, "a", file="a,b.mar"))


def test_model_store(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        archive(tmp_path, name)
    (tmp_path / "notes.txt").write_text("")
    assert [each.name for each in read_model_store(tmp_path, [])] == ["a", "b", "c"]
    assert [each.name for each in read_model_store(tmp_path, ["c", "a"])] == ["c", "a"]


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    archive(tmp_path, "a")
    with pytest.raises(SettingsError, match="asks for 'b', which is not there") as caught:
        read_model_store(tmp_path, ["b"])
    assert (caught.value.why, caught.value.remedy) == ("it holds a", "build it: `tscpu build b`")


@pytest.mark.parametrize("folder", ["empty", "missing", "file"])
def test_no_archive_at_all(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="there is no archive to serve"):
        read_model_store(tmp_path / folder, [])
