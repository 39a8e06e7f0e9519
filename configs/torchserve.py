"""What each TorchServe version can do.

0.6.0 starts the launcher with one instance hard-coded, so that all workers stand on the same cores; 0.6.1 numbers
them; 0.8.2 moved from Intel's launcher to PyTorch's own.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from configs.errors import MachineError


@dataclass(frozen=True)
class Launcher:
    """The CPU launcher that a TorchServe version starts its workers with.

    Attributes:
        module: what `python -m` runs.
        core_list, cores_per_instance: names of its arguments.
        numbers_workers: whether each worker gets cores of its own.
    """

    module: str
    core_list: str
    cores_per_instance: str
    numbers_workers: bool


_LAUNCHERS = (
    ((0, 8, 2), Launcher("torch.backends.xeon.run_cpu", "--core-list", "--ncores-per-instance", True)),
    ((0, 6, 1), Launcher("intel_extension_for_pytorch.cpu.launch", "--core_list", "--ncore_per_instance", True)),
    ((0, 6, 0), Launcher("intel_extension_for_pytorch.cpu.launch", "--core_list", "--ncore_per_instance", False)),
)


def installed_version() -> str:
    """The version of the TorchServe beside this interpreter.

    Raises:
        MachineError: there is none.
    """
    try:
        return importlib.metadata.version("torchserve")
    except importlib.metadata.PackageNotFoundError as error:
        raise MachineError("TorchServe is not installed", remedy="pip install torchserve==0.12.0") from error


def launcher_of(version: str) -> Launcher | None:
    """The launcher of a version, or None before 0.6.0, which has none.

    Raises:
        MachineError: not a version.
    """
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        raise MachineError("this is no TorchServe version", why=repr(version))
    key = tuple(int(number or 0) for number in numbers.groups())
    return next((launcher for since, launcher in _LAUNCHERS if key >= since), None)
