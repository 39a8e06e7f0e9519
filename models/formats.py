"""A network as the runtimes' files: TorchScript, ONNX, OpenVINO, and the quantized two. The same network gives the
same bytes.

What each file is checked for lives in `parity`; what to quantize with, in `samples`.
"""

from __future__ import annotations

import io
import logging
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

from handlers.errors import ArtifactError
from handlers.runtimes import import_ipex

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold
OPSET = 17
# The first convolutions see the widest range of values and cost little: quantized, they move a scorer's scores twice
# as far.
FP32_CONVOLUTIONS = 3
_CONVOLUTIONS = frozenset({"Convolution", "GroupConvolution"})
Samples = Callable[[], Sequence[torch.Tensor]]


def write(format: str, network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    """Writes a network in one format into a folder.

    Args:
        format: a key of FORMATS.
        example: float32 [2, 3, size, size], channels-last.
        samples: gives float32 [1, 3, size, size] each, to calibrate a quantized format with.

    Returns:
        The file's name. What belongs to it has the same stem.

    Raises:
        ArtifactError: a package is missing, or it cannot export this network.
    """
    try:
        return FORMATS[format](network, example, samples, folder)
    except ArtifactError:
        raise
    except ImportError as error:
        raise ArtifactError(f"{format} cannot be written here", where=str(error.name), why=str(error),
                            remedy="pip install -e '.[openvino,onnx]'") from error
    except Exception as error:  # exporters raise whatever an operation that they do not know makes of them
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise ArtifactError(f"the network cannot be written as {format}", where=type(error).__name__, why=why,
                            remedy="build it for another runtime: --runtime eager always works") from error


def torchscript(network: nn.Module, example: torch.Tensor, ipex: bool) -> bytes:
    """The network as TorchScript bytes, traced channels-last.

    For ipex the module first goes through ipex.optimize without prepacking: its weights stay in a layout that suits
    every shape, and freezing the graph in the worker packs them for the real one.
    """
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        if ipex and not isinstance(network, torch.jit.ScriptModule):
            import_ipex()
            import intel_extension_for_pytorch

            network = intel_extension_for_pytorch.optimize(network, weights_prepack=False)
        graph = network if isinstance(network, torch.jit.ScriptModule) else torch.jit.trace(network, example)  # type: ignore[no-untyped-call]
        buffer = io.BytesIO()
        torch.jit.save(graph, buffer)  # type: ignore[no-untyped-call]
    return _without_debug_records(buffer.getvalue())


def _without_debug_records(data: bytes) -> bytes:
    """TorchScript's zip without its debug records, which hold paths of the machine that built it, and undated."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for entry in sorted(source.infolist(), key=lambda entry: entry.filename):
            if not entry.filename.endswith((".debug_pkl", "serialization_id")):
                target.writestr(zipfile.ZipInfo(entry.filename, _EPOCH), source.read(entry))
    return out.getvalue()


def _torchscript(network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    (folder / "eager.pt").write_bytes(torchscript(network, example, ipex=False))
    return "eager.pt"


def _torchscript_ipex(network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    (folder / "ipex.pt").write_bytes(torchscript(network, example, ipex=True))
    return "ipex.pt"


def _onnx(network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    import onnx  # noqa: F401  # torch's exporter asks for it late, and in other words

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (example,), str(folder / "model.onnx"), input_names=["images"],
                          output_names=["outputs"], opset_version=OPSET, dynamo=False,
                          dynamic_axes={"images": {0: "batch"}, "outputs": {0: "batch"}})
    return "model.onnx"


def _onnx_int8(network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    """ONNX Runtime's own static quantization, of convolutions and matrix products only: with every operation it loses
    a third of the answers, and a graph that NNCF has quantized runs slower than fp32 there.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Feed(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(samples())

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self._left, None)
            return None if sample is None else {"images": sample.contiguous().numpy()}

    with tempfile.TemporaryDirectory(dir=folder) as name, _silence():
        scratch = Path(name)
        source, prepared = scratch / _onnx(network, example, samples, scratch), scratch / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared), str(folder / "int8.onnx"), Feed(), quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Gemm"], per_channel=True, reduce_range=True,
            nodes_to_exclude=_onnx_kept(onnx.load(str(prepared))))
    return "int8.onnx"


def _openvino_model(network: nn.Module, example: torch.Tensor) -> Any:
    import openvino

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = openvino.convert_model(network, example_input=example,
                                       input=openvino.PartialShape([-1, *example.shape[1:]]))
    return _renumbered(model)


def _renumbered(model: Any) -> Any:
    """The model with its operations numbered from 0: OpenVINO counts, over all models of a process, those that it
    gives a name of its own, and the model itself.
    """
    model.set_friendly_name("network")
    for index, operation in enumerate(model.get_ordered_ops()):
        if re.fullmatch(r"[A-Za-z0-9]+_\d+", operation.get_friendly_name()):
            operation.set_friendly_name(f"{operation.get_type_name()}_{index}")
    return model


def _openvino(network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    import openvino

    openvino.save_model(_openvino_model(network, example), str(folder / "openvino.xml"), compress_to_fp16=False)
    return "openvino.xml"


def _openvino_int8(network: nn.Module, example: torch.Tensor, samples: Samples, folder: Path) -> str:
    import openvino

    model = _openvino_model(network, example)
    quantized = _quantized(model, samples, _openvino_kept(model))
    openvino.save_model(_renumbered(quantized), str(folder / "openvino-int8.xml"), compress_to_fp16=False)
    return "openvino-int8.xml"


FORMATS: dict[str, Callable[[nn.Module, torch.Tensor, Samples, Path], str]] = {
    "torchscript": _torchscript, "torchscript-ipex": _torchscript_ipex, "onnx": _onnx, "onnx-int8": _onnx_int8,
    "openvino": _openvino, "openvino-int8": _openvino_int8,
}


def _quantized(model: Any, samples: Samples, kept: list[str]) -> Any:
    """NNCF's post-training quantization (https://docs.openvino.ai, "Basic Quantization Flow").

    Weights keep 7 bits of 8: CPUs without VNNI add up pairs of products in 16 bits, which would overflow. SmoothQuant
    is for transformers.
    """
    with _silence():
        import nncf
        from nncf.quantization.advanced_parameters import OverflowFix

        nncf.set_log_level(logging.ERROR)
        batches = [sample.contiguous().numpy() for sample in samples()]
        return nncf.quantize(
            model, nncf.Dataset(batches), preset=nncf.QuantizationPreset.MIXED, subset_size=len(batches),
            fast_bias_correction=True, ignored_scope=nncf.IgnoredScope(names=kept),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                overflow_fix=OverflowFix.ENABLE,
                smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(convolution=-1, matmul=-1)))


@contextmanager
def _silence() -> Iterator[None]:
    """Without the progress bars and warnings of quantizers, which no log level stops."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), \
            warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _openvino_kept(model: Any) -> list[str]:
    """Operations that stay in fp32: the first convolutions, and what no convolution follows (statistics, head)."""
    operations = model.get_ordered_ops()
    before: set[str] = set()
    after = []
    for operation in reversed(operations):
        users = [target.get_node() for output in operation.outputs() for target in output.get_target_inputs()]
        if any(user.get_type_name() in _CONVOLUTIONS or user.get_friendly_name() in before for user in users):
            before.add(operation.get_friendly_name())
        elif operation.get_type_name() not in _CONVOLUTIONS | {"Parameter", "Result", "Constant"}:
            after.append(operation.get_friendly_name())
    first = [each.get_friendly_name() for each in operations if each.get_type_name() in _CONVOLUTIONS]
    return list(dict.fromkeys(after + first[:FP32_CONVOLUTIONS]))


def _onnx_kept(model: Any) -> list[str]:
    """The same for an ONNX graph, whose nodes are in the order of execution."""
    feeds_convolution: set[str] = set()  # names of tensors
    after = []
    for node in reversed(model.graph.node):
        convolution = node.op_type == "Conv"
        if convolution or any(output in feeds_convolution for output in node.output):
            feeds_convolution.update(node.input)
        if not convolution and not any(output in feeds_convolution for output in node.output):
            after.append(node.name)
    first = [node.name for node in model.graph.node if node.op_type == "Conv"]
    return list(dict.fromkeys(after + first[:FP32_CONVOLUTIONS]))
