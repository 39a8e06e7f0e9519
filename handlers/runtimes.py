"""One small class a runtime: how a built network is opened and called in a worker.

To add one: a class with `open`, and its line in RUNTIMES; `models.export` gains the function that writes its file.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from handlers.errors import ArtifactError

Network = Callable[[torch.Tensor], torch.Tensor]


class Runtime(Protocol):
    """What a runtime must do."""

    def open(self, path: Path, threads: int) -> Network:
        """A network's file → a callable: float32 [N, 3, size, size], channels-last → outputs [N, …].

        Args:
            threads: intra-op threads that the callable may use.

        Raises:
            ArtifactError: the file or the runtime itself cannot be used here.
        """


class Eager:
    """The reference: the traced graph as it was built, run by plain PyTorch."""

    def open(self, path: Path, threads: int) -> Network:
        return _load_torchscript(path, threads)


class Ipex:
    """Intel Extension for PyTorch, by trace and freeze.

    The graph was passed through ipex.optimize(weights_prepack=False) and traced channels-last at build time;
    freezing it here, with the extension imported, picks its fused kernels for this CPU. ipex.optimize on the eager
    module, as TorchServe's own BaseHandler does it, prepacks weights for another shape and reorders on every call:
    up to six times slower.
    """

    def open(self, path: Path, threads: int) -> Network:
        import_ipex()
        return cast(Network, torch.jit.freeze(cast(Any, _load_torchscript(path, threads))))


RUNTIMES: dict[str, Callable[[], Runtime]] = {"eager": Eager, "ipex": Ipex}


def open_runtime(name: str, path: Path, threads: int) -> Network:
    """Opens a network's file with the runtime of that name.

    Raises:
        ArtifactError: no runtime of that name, or it cannot open the file.
    """
    if name not in RUNTIMES:
        raise ArtifactError(f"there is no runtime {name!r}", where=str(path), remedy="one of " + ", ".join(RUNTIMES))
    return RUNTIMES[name]().open(path, threads)


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


def _load_torchscript(path: Path, threads: int) -> Network:
    torch.set_num_threads(threads)
    try:
        return cast(Network, torch.jit.load(str(path), map_location="cpu").eval())  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise ArtifactError("cannot open the network", where=str(path), why=str(error).splitlines()[0],
                            remedy="build the archive again with this version of torch: `tscpu build`") from error
