"""One small class a runtime: how a built network is opened and called in a worker.

To add one: a class like these, and its line in RUNTIMES; `models.formats` gains the function that writes its file.
Every package is imported when a file is opened, so that a worker holds none but its own.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from handlers.errors import ArtifactError
from handlers.transforms import InputSpec

Run = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Network:
    """An opened network.

    Attributes:
        floats: normalised float32 [N, 3, size, size], channels-last → outputs [N, …].
        pixels: the same for uint8 pixels that are not normalised yet, where the runtime does that better than torch.
    """

    floats: Run
    pixels: Run | None = None

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        if batch.dtype != torch.uint8:
            return self.floats(batch)
        if self.pixels is None:
            raise TypeError("this runtime takes normalised float32 only")
        return self.pixels(batch)


class Runtime(Protocol):
    """What a runtime must do.

    Attributes:
        format: of the file, as `models.formats` writes it.
        package: what must be importable; empty for none.
        cpu_flag: the instruction set that it cannot do without, as /proc/cpuinfo calls it; empty for none.
    """

    format: str
    package: str
    cpu_flag: str

    def open(self, path: Path, threads: int, spec: InputSpec) -> Network:
        """Opens a network's file.

        Args:
            threads: intra-op threads that it may use.
            spec: how pixels are normalised.

        Raises:
            ArtifactError: the file or the runtime itself cannot be used here.
        """


class Eager:
    """The reference: the traced graph as it was built, run by plain PyTorch."""

    format, package, cpu_flag = "torchscript", "", ""

    def open(self, path: Path, threads: int, spec: InputSpec) -> Network:
        return Network(_load_torchscript(path, threads))


class Ipex:
    """Intel Extension for PyTorch, by trace and freeze.

    The graph was passed through ipex.optimize(weights_prepack=False) and traced channels-last at build time;
    freezing it here, with the extension imported, picks its fused kernels for this CPU. ipex.optimize on the eager
    module, as TorchServe's own BaseHandler does it, prepacks weights for another shape and reorders on every call:
    up to six times slower.
    """

    format, package, cpu_flag = "torchscript-ipex", "intel_extension_for_pytorch", "avx2"

    def open(self, path: Path, threads: int, spec: InputSpec) -> Network:
        import_ipex()
        return Network(cast(Run, torch.jit.freeze(cast(Any, _load_torchscript(path, threads)))))


class OnnxRuntime:
    """ONNX Runtime on the CPU, one session a worker.

    Waiting threads never spin: https://onnxruntime.ai/docs/performance/tune-performance/threading.html
    """

    package, cpu_flag = "onnxruntime", ""

    def __init__(self, format: str = "onnx") -> None:
        self.format = format

    def open(self, path: Path, threads: int, spec: InputSpec) -> Network:
        onnxruntime = _imported(self.package)
        torch.set_num_threads(threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own exceptions derive from nothing narrower
            raise _unopened(path, error) from error
        name = session.get_inputs()[0].name

        def run(batch: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(session.run(None, {name: batch.contiguous().numpy()})[0])

        return Network(run)


class OpenVino:
    """OpenVINO on the CPU: one stream, of which the calling thread is the first.

    It is told the count of threads and nothing of where they run: `placement` has pinned the process already, and
    OpenVINO's own pinning counts from the first CPU of the mask. Float32 stays float32: on CPUs with AMX or
    AVX512_BF16 it would take bf16 by itself. Images come as they lie in memory, channels last; pixels are normalised
    by its own graph, which saves a pass over the image (a fifteenth of an INT8 network's time).
    """

    package, cpu_flag = "openvino", ""

    def __init__(self, format: str = "openvino") -> None:
        self.format = format

    def open(self, path: Path, threads: int, spec: InputSpec) -> Network:
        _imported(self.package)
        torch.set_num_threads(threads)
        try:
            return Network(self._compiled(path, threads, None), self._compiled(path, threads, spec))
        except Exception as error:  # RuntimeError, mostly; its frontends raise others
            raise _unopened(path, error) from error

    @staticmethod
    def _compiled(path: Path, threads: int, pixels: InputSpec | None) -> Run:
        import openvino
        from openvino.preprocess import PrePostProcessor

        core = openvino.Core()
        model = core.read_model(str(path))
        steps = PrePostProcessor(model)
        image = steps.input()
        image.model().set_layout(openvino.Layout("NCHW"))
        image.tensor().set_layout(openvino.Layout("NHWC"))
        if pixels is not None:
            image.tensor().set_element_type(openvino.Type.u8)
            image.preprocess().convert_element_type(openvino.Type.f32).mean(
                [255.0 * each for each in pixels.mean]).scale([255.0 * each for each in pixels.std])
        compiled = core.compile_model(steps.build(), "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False})
        request, output = compiled.create_infer_request(), compiled.output(0)

        def run(batch: torch.Tensor) -> torch.Tensor:
            rows = batch.permute(0, 2, 3, 1).contiguous()  # no copy, where channels are last in memory already
            result = request.infer([rows.numpy()], share_inputs=True, share_outputs=True)
            # the next call writes into the same memory
            return torch.from_numpy(result[output].copy())

        return run


RUNTIMES: dict[str, Runtime] = {
    "eager": Eager(),
    "ipex": Ipex(),
    "onnxruntime": OnnxRuntime(),
    "onnxruntime-int8": OnnxRuntime("onnx-int8"),
    "openvino": OpenVino(),
    "openvino-int8": OpenVino("openvino-int8"),
}


def open_runtime(name: str, path: Path, threads: int, spec: InputSpec) -> Network:
    """Opens a network's file with the runtime of that name.

    Raises:
        ArtifactError: no runtime of that name, or it cannot open the file.
    """
    if name not in RUNTIMES:
        raise ArtifactError(f"there is no runtime {name!r}", where=str(path), remedy="one of " + ", ".join(RUNTIMES))
    return RUNTIMES[name].open(path, threads, spec)


def import_ipex() -> None:
    """Imports the extension without its warnings, which would fill every worker's log.

    Raises:
        ArtifactError: not installed, or made for another torch.
    """
    logging.getLogger("IPEX").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "JIT pass will be deprecated", UserWarning)  # it comes with the first call
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import intel_extension_for_pytorch  # noqa: F401
    except (ImportError, OSError, SystemExit) as error:
        # SystemExit: its own check of the torch version calls exit()
        raise ArtifactError("the ipex runtime is not usable here", where="intel_extension_for_pytorch",
                            why=f"{type(error).__name__}: {error}",
                            remedy="install the release that matches torch's major.minor, or build with "
                                   "runtime: eager") from error


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except (ImportError, OSError) as error:
        raise ArtifactError(f"the runtime {package} is not usable here", where=package,
                            why=f"{type(error).__name__}: {error}",
                            remedy=f"pip install {package}, or serve the model with another runtime") from error


def _unopened(path: Path, error: Exception) -> ArtifactError:
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ArtifactError("cannot open the network", where=str(path), why=why,
                         remedy="build the archive again with the packages that are installed here: `tscpu build`")


def _load_torchscript(path: Path, threads: int) -> Run:
    torch.set_num_threads(threads)
    try:
        return cast(Run, torch.jit.load(str(path), map_location="cpu").eval())  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise ArtifactError("cannot open the network", where=str(path), why=str(error).splitlines()[0],
                            remedy="build the archive again with this version of torch: `tscpu build`") from error
