"""What a figure belongs to: the CPU with its instruction sets, the kernel, the memory, and the versions in use."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from configs.limits import read_limits
from configs.planning import thread_budget
from configs.topology import format_cpu_list, read_topology

# the instruction sets that decide which kernels a runtime picks
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
PACKAGES = ("torch", "intel-extension-for-pytorch", "onnxruntime", "openvino", "nncf", "torchserve", "litserve",
            "locust", "pillow", "captum")


def describe() -> dict[str, Any]:
    """This machine, as the report and the JSON file show it."""
    topology = read_topology(Path("/"))
    limits = read_limits(Path("/"), topology.online)
    return {
        "cpu_model": topology.model, "flags": [flag for flag in FLAGS if flag in topology.flags],
        "allowed_cpus": format_cpu_list(limits.allowed), "physical_cores": len(topology.physical_cores(limits.allowed)),
        "cpu_limit": limits.cpus, "budget": thread_budget(topology, limits),
        "memory_gib": round(_meminfo("MemTotal") / 2**30, 1), "kernel": platform.release(),
        "python": platform.python_version(), "java": _java(), "versions": versions()}


def versions() -> dict[str, str]:
    """Installed versions of what takes part; packages that are not installed are left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def available_memory() -> int:
    """Bytes that new processes can have: the kernel's estimate, or what the pod's limit leaves, if that is less."""
    available = _meminfo("MemAvailable")
    limits = read_limits(Path("/"), read_topology(Path("/")).online)
    return available if limits.memory is None else min(available, limits.memory)


def _meminfo(name: str) -> int:
    with Path("/proc/meminfo").open() as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    try:
        done = subprocess.run([f"{home}/bin/java" if home else "java", "-version"], capture_output=True, text=True,
                              check=False)
    except OSError:
        return "none"
    return (done.stderr.splitlines() or ["unknown"])[0]
