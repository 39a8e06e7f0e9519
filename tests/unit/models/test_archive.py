"""Archives that are refused before TorchServe could restart their workers for ever."""

from __future__ import annotations

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from handlers.artifact import Artifact
from handlers.errors import ArtifactError
from models.archive import package
from models.export import build
from models.spec import read_spec


class Means(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 8.0 * x.mean((2, 3))


def quiet(what: str, done: int, total: int) -> None:
    pass


def model(folder: Path, handler: str = "classifier", extra: str = "", labels: str = '["red", "green", "blue"]') -> Path:
    folder.mkdir(parents=True)
    torch.jit.trace(Means().eval(), torch.zeros(1, 3, 16, 16)).save(str(folder / "network.pt"))
    (folder / "labels.json").write_text(labels)
    (folder / "model.yaml").write_text(
        f"name: colours\nhandler: {handler}\nruntime: eager\nnetwork: {{file: network.pt}}\nlabels: labels.json\n"
        f"input: {{size: 16}}\noutput: {{top_k: 3}}\nbatch: {{size: 3}}\n{extra}")
    return folder


def packed(folder: Path, out: Path) -> Path:
    build(folder, out / "artifacts", out / "cache", quiet)
    return package(out / "artifacts" / "colours", read_spec(folder), out / "store")[0]


def test_p31_p35_same_inputs_give_the_same_archive_side_by_side(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    with ThreadPoolExecutor(2) as pool:
        # the builds follow each other, the archivers meet
        for out in ("a", "b"):
            build(folder, tmp_path / out / "artifacts", tmp_path / "cache", quiet)
        archives = list(pool.map(lambda out: package(tmp_path / out / "artifacts" / "colours", read_spec(folder),
                                                     tmp_path / out / "store")[0], ("a", "b")))
    left, right = (hashlib.sha256(path.read_bytes()).hexdigest() for path in archives)
    assert left == right
    with zipfile.ZipFile(archives[0]) as archive:
        names = archive.namelist()
        everything = b"".join(archive.read(name) for name in names)
    assert {"handlers/vision.py", "artifact.json", "service.py", "eager.pt", "MAR-INF/MANIFEST.json"} <= set(names)
    assert not any(name.endswith(("requirements.txt", ".pyc", ".debug_pkl")) for name in names)
    assert str(tmp_path).encode() not in everything


@pytest.mark.parametrize(("source", "words"), [
    ("import not_there\n", "not_there"),
    ("from handlers.vision import VisionHandler\nclass Mine(VisionHandler):\n"
     "    def initialize(self, context):\n        raise ValueError('no such thing')\n", "no such thing"),
    ("from handlers.vision import VisionHandler\nclass Mine(VisionHandler):\n"
     "    def answer(self, output):\n        return output[99]\n", "index 99"),
], ids=["import", "initialize", "answer"])
def test_p33_a_broken_handler_never_reaches_the_store(tmp_path: Path, source: str, words: str) -> None:
    folder = model(tmp_path / "model", handler="mine.py:Mine")
    (folder / "mine.py").write_text(source)
    with pytest.raises(ArtifactError, match=words):
        packed(folder, tmp_path)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(("labels", "extra", "words"), [
    ('["red", "green"]', "", "2 labels"),
    ('{"labels": ["red", "green", "blue"], "warm": [3]}', "", "no index"),
    ("[]", "", "labels"),
], ids=["too few", "group", "none"])
def test_p30_labels_that_do_not_fit_are_refused(tmp_path: Path, labels: str, extra: str, words: str) -> None:
    folder = model(tmp_path / "model", labels=labels, extra=extra)
    with pytest.raises(ArtifactError, match=words):
        build(folder, tmp_path / "out", tmp_path / "cache", quiet)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_p30_top_k_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    text = (folder / "model.yaml").read_text().replace("top_k: 3", "top_k: 4")
    (folder / "model.yaml").write_text(text)
    with pytest.raises(ArtifactError, match="4 of 3"):
        build(folder, tmp_path / "out", tmp_path / "cache", quiet)


def test_the_artifact_says_what_it_was_built_from(tmp_path: Path) -> None:
    artifact = build(model(tmp_path / "model"), tmp_path / "out", tmp_path / "cache", quiet)
    assert artifact == Artifact.read(tmp_path / "out" / "colours")
    data = json.loads((tmp_path / "out" / "colours" / "artifact.json").read_text())
    parity = data["record"]["parity"]
    assert parity["runtimes"]["eager"]["random_tensors"]["relative"] <= parity["tolerance"]["fp32"]
    assert "refused" not in parity["runtimes"]["eager"]
    assert set(data["versions"]) == {"python", "torch"}
