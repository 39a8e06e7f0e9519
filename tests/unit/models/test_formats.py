"""Every file is written to the same bytes by whoever writes it, and says what it cannot hold."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from handlers.errors import ArtifactError
from models.formats import FORMATS, FP32_CONVOLUTIONS, _onnx_kept, _openvino_kept, _openvino_model, write
from tests.unit.small_network import batch, small_network

ROOT = Path(__file__).resolve().parents[3]
NEEDS = {"torchscript": (), "torchscript-ipex": ("intel_extension_for_pytorch",), "onnx": ("onnx",),
         "onnx-int8": ("onnx", "onnxruntime"), "openvino": ("openvino",), "openvino-int8": ("openvino", "nncf")}
WITHOUT_PACKAGES = [format for format, packages in NEEDS.items()
                    if not all(importlib.util.find_spec(package) for package in packages)]
WRITE = """
import sys
from pathlib import Path
from models.formats import write
from tests.unit.small_network import batch, small_network
for format in sys.argv[2:]:
    write(format, small_network(), batch(2), lambda: [batch(1, seed) for seed in range(12)], Path(sys.argv[1]))
"""


def needs(format: str) -> None:
    if format in WITHOUT_PACKAGES:
        pytest.skip(f"{' and '.join(NEEDS[format])} are not installed")


class Samples:
    """A few, and how often they were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> list[torch.Tensor]:
        self.asked += 1
        return [batch(1, seed) for seed in range(6)]


def no_samples() -> Sequence[torch.Tensor]:
    raise AssertionError("nobody should ask for samples")


@pytest.fixture(scope="module")
def written_twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What two fresh processes write, the second in another order: no format may leave its mark on the next. Only
    TorchScript comes first in both: torch numbers its classes by what the process has traced before.
    """
    formats = [format for format in ("torchscript", "onnx", "onnx-int8", "openvino", "openvino-int8")
               if format not in WITHOUT_PACKAGES]
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    running = [subprocess.Popen([sys.executable, "-c", WRITE, str(folder), *order], cwd=ROOT, stderr=subprocess.PIPE,
                                text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
               for folder, order in zip(folders, (formats, formats[:1] + formats[:0:-1]), strict=True)]
    for process in running:
        error = process.communicate()[1]
        assert process.returncode == 0, error
    return folders


@pytest.mark.parametrize(("format", "files"), [
    ("torchscript", ["eager.pt"]), ("onnx", ["model.onnx"]), ("onnx-int8", ["int8.onnx"]),
    ("openvino", ["openvino.xml", "openvino.bin"]), ("openvino-int8", ["openvino-int8.xml", "openvino-int8.bin"])])
def test_p35_the_same_network_gives_the_same_bytes(written_twice: list[Path], format: str, files: list[str]) -> None:
    needs(format)
    for name in files:
        first, second = ((folder / name).read_bytes() for folder in written_twice)
        assert len(first) > 1000
        assert first == second
        for path in (ROOT, *written_twice):  # nor anything of where it was written
            assert str(path).encode() not in first


def test_nothing_else_is_left_beside_the_files(written_twice: list[Path]) -> None:
    left = {path.name for path in written_twice[0].iterdir()}
    assert left <= {"eager.pt", "model.onnx", "int8.onnx", "openvino.xml", "openvino.bin", "openvino-int8.xml",
                    "openvino-int8.bin"}


@pytest.mark.parametrize("format", [format for format in FORMATS if "int8" not in format and "ipex" not in format])
def test_fp32_asks_for_no_samples_and_leaves_the_network_as_it_was(tmp_path: Path, format: str) -> None:
    needs(format)
    network, images = small_network(), batch(2)
    with torch.inference_mode():
        before = network(images)
    assert (tmp_path / write(format, network, images, no_samples, tmp_path)).is_file()
    with torch.inference_mode():
        assert torch.equal(network(images), before)
    assert not network.training


# what stays in fp32

class Staged(nn.Module):
    """Five convolutions and a linear layer, which also sees the means after the first and the fourth: a scorer's."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3 if index == 0 else 8, 8, 3, padding=1) for index in range(5))
        self.head = nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = []
        for index, convolution in enumerate(self.convolutions):
            x = torch.relu(convolution(x))
            if index in (0, 3, 4):
                means.append(x.mean((2, 3)))
        return self.head(torch.cat(means, 1).sigmoid())


CONVOLUTIONS = 5


def test_the_first_convolutions_and_the_tail_stay_fp32_in_openvino() -> None:
    needs("openvino")
    model = _openvino_model(Staged().eval(), batch(2))
    operations = {each.get_friendly_name(): each.get_type_name() for each in model.get_ordered_ops()}
    kept = _openvino_kept(model)
    kinds = [operations[name] for name in kept]
    assert len(set(kept)) == len(kept)
    assert kinds.count("Convolution") == FP32_CONVOLUTIONS
    first = [name for name, kind in operations.items() if kind == "Convolution"][:FP32_CONVOLUTIONS]
    assert set(first) <= set(kept)
    assert kinds.count("ReduceMean") == 3 and {"Concat", "MatMul", "Sigmoid"} <= set(kinds)
    assert kinds.count("Relu") == 1  # after the last convolution; the others feed one


def test_the_first_convolutions_and_the_tail_stay_fp32_in_onnx(tmp_path: Path) -> None:
    needs("onnx")
    import onnx

    model = onnx.load(str(tmp_path / write("onnx", Staged().eval(), batch(2), no_samples, tmp_path)))
    nodes = {node.name: node.op_type for node in model.graph.node}
    kept = _onnx_kept(model)
    kinds = [nodes[name] for name in kept]
    assert len(set(kept)) == len(kept)
    assert kinds.count("Conv") == FP32_CONVOLUTIONS
    assert set([name for name, kind in nodes.items() if kind == "Conv"][:FP32_CONVOLUTIONS]) <= set(kept)
    assert kinds.count("ReduceMean") == 3 and {"Concat", "Gemm", "Sigmoid"} <= set(kinds)
    assert kinds.count("Relu") == 1


@pytest.mark.parametrize("network", [nn.Flatten(), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                                                 nn.Linear(3, 2))], ids=["none at all", "linear"])
def test_a_network_without_convolutions_stays_fp32(tmp_path: Path, network: nn.Module) -> None:
    needs("openvino")
    needs("onnx")
    import onnx

    model = _openvino_model(network.eval(), batch(2))
    own = [each.get_friendly_name() for each in model.get_ordered_ops()
           if each.get_type_name() not in ("Parameter", "Result", "Constant")]
    assert set(_openvino_kept(model)) == set(own)
    graph = onnx.load(str(tmp_path / write("onnx", network.eval(), batch(2), no_samples, tmp_path)))
    assert set(_onnx_kept(graph)) == {node.name for node in graph.graph.node}


def test_only_the_later_convolutions_are_quantized_in_openvino(tmp_path: Path) -> None:
    needs("openvino-int8")
    import openvino

    samples = Samples()
    file = write("openvino-int8", Staged().eval(), batch(2), samples, tmp_path)
    assert samples.asked == 1
    model = openvino.Core().read_model(str(tmp_path / file))

    def quantized(operation: Any) -> bool:
        return any(value.get_node().get_type_name() == "FakeQuantize" for value in operation.input_values())

    convolutions = [each for each in model.get_ordered_ops() if each.get_type_name() == "Convolution"]
    assert [quantized(each) for each in convolutions] == [
        index >= FP32_CONVOLUTIONS for index in range(CONVOLUTIONS)]
    assert not any(quantized(each) for each in model.get_ordered_ops() if each.get_type_name() == "MatMul")


def test_only_the_later_convolutions_are_quantized_in_onnx(tmp_path: Path) -> None:
    needs("onnx-int8")
    import onnx

    samples = Samples()
    model = onnx.load(str(tmp_path / write("onnx-int8", Staged().eval(), batch(2), samples, tmp_path)))
    assert samples.asked == 1
    makers = {output: node.op_type for node in model.graph.node for output in node.output}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    assert [makers.get(node.input[0]) == "DequantizeLinear" for node in convolutions] == [
        index >= FP32_CONVOLUTIONS for index in range(CONVOLUTIONS)]
    assert not any(makers.get(name) == "DequantizeLinear" for node in model.graph.node if node.op_type == "Gemm"
                   for name in node.input)


# what cannot be written

class Decomposed(nn.Module):
    """Singular values, which none of the exporters knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = torch.linalg.svdvals(x).flatten(1)
        return values


class Counting(nn.Module):
    """What it gives is not made of tensors alone."""

    def forward(self, x: torch.Tensor) -> object:
        return x.mean((2, 3)), "three of them"


@pytest.mark.parametrize(("format", "network"), [
    ("onnx", Decomposed()), ("onnx-int8", Decomposed()), ("openvino", Decomposed()), ("openvino-int8", Decomposed()),
    ("torchscript", Counting())])
def test_a_network_that_cannot_be_written_is_refused_in_words(tmp_path: Path, format: str, network: nn.Module) -> None:
    needs(format)
    with pytest.raises(ArtifactError, match=f"the network cannot be written as {format}") as caught:
        write(format, network.eval(), batch(2), Samples(), tmp_path)
    assert caught.value.where and caught.value.why and "\n" not in caught.value.why
    assert "--runtime eager" in caught.value.remedy


@pytest.mark.parametrize(("format", "package"), [("onnx", "onnx"), ("onnx-int8", "onnx"), ("openvino", "openvino"),
                                                 ("openvino-int8", "nncf")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, format: str, package: str) -> None:
    if package == "nncf":
        needs("openvino")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArtifactError, match=f"{format} cannot be written here") as caught:
        write(format, small_network(), batch(2), Samples(), tmp_path)
    assert package in caught.value.where and "pip install" in caught.value.remedy
