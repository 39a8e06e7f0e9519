"""Topologies, limits, models and plans as the tests of configs/ make them up."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from configs.archives import Built, ServedModel
from configs.limits import Limits, read_limits
from configs.plan import Plan
from configs.planning import make_plan
from configs.settings import Settings
from configs.topology import Cpu, Topology, read_topology

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
Numbering = Literal["far", "near", "interleaved"]
GB = 10**9


def topology(sockets: int = 1, nodes: int = 1, cores: int = 4, smt: int = 1, numbering: Numbering = "far",
             numa: bool = True) -> Topology:
    """A machine of so many sockets, NUMA nodes a socket, cores a node and hardware threads a core.

    Args:
        numbering: of CPU ids: siblings "far" apart (0,24), "near" (0,1), or cores dealt out to sockets by turns.
    """
    places = [(socket, socket * nodes + node) for socket in range(sockets) for node in range(nodes)
              for _ in range(cores)]
    if numbering == "interleaved":
        each = nodes * cores
        places = [places[socket * each + index] for index in range(each) for socket in range(sockets)]
    cpus = []
    for index, (socket, node) in enumerate(places):
        ids = ([index * smt + thread for thread in range(smt)] if numbering == "near"
               else [index + len(places) * thread for thread in range(smt)])
        cpus += [Cpu(cpu, ids[0], socket, node if numa else None) for cpu in ids]
    return Topology(tuple(sorted(cpus, key=lambda cpu: cpu.id)), "A CPU", "x86_64", frozenset({"lm", "avx2"}))


def limits(machine: Topology, cpus: float | None = None, allowed: Iterable[int] | None = None,
           memory: int | None = None, pids: int | None = None, host: str = "") -> Limits:
    """What a pod may use of a machine; everything, unless told."""
    own = machine.online if allowed is None else tuple(sorted(allowed))
    return Limits(
        cpus=cpus, cpus_source="no quota" if cpus is None else f"cgroup v2 cpu.max = {cpus}", allowed=own,
        allowed_source="some CPUs", cpuset_is_smaller=len(own) < len(machine.cpus), memory=memory,
        memory_source=f"cgroup v2 memory.max = {memory}", pids=pids, pids_source=f"cgroup v2 pids.max = {pids}",
        cgroup="v2", cpu_stat=None, host=host)


def model(name: str = "a", resident: int = GB, inference_ms: float = 100.0, **changes: Any) -> ServedModel:
    """An archive: 1 GB a worker, 20 s to load, 100 ms an image on one thread."""
    archive = {key: changes.pop(key) for key in ("version", "archive", "batch_size", "max_batch_delay_ms")
               if key in changes}
    runtime = changes.pop("runtime", "eager")
    built = Built(runtime, cpu_flag="avx2" if runtime == "ipex" else "",
                  **{"resident_bytes": resident, "load_seconds": 20.0, "inference_ms": inference_ms, "measured": True,
                     **changes})
    made = ServedModel(name=name, version="1.0", archive=f"{name}.mar", runtime=runtime, batch_size=1,
                       max_batch_delay_ms=1, built=(built,))
    return replace(made.served_by(built), **archive)


def plan(machine: Topology | None = None, bounds: Limits | None = None, names: str = "a", version: str = "0.12.0",
         archives: list[ServedModel] | None = None, **settings: Any) -> Plan:
    """The plan of a made-up pod, by default one model on four cores of its own.

    Args:
        settings: the serving file.
    """
    machine = machine or topology()
    return make_plan(machine, bounds or limits(machine), Settings(**settings),
                     archives or [model(name) for name in names], version)


def plan_of(name: str, names: str = "a", version: str = "0.12.0", archives: list[ServedModel] | None = None,
            **settings: Any) -> Plan:
    """The plan of a recorded machine."""
    return plan(*recorded(name), names, version, archives, **settings)


@cache
def recorded(name: str) -> tuple[Topology, Limits]:
    """What the readers find on a recorded machine."""
    machine = read_topology(MACHINES / name)
    return machine, read_limits(MACHINES / name, machine.online)


def shapes(decided: Plan) -> dict[str, str]:
    """Workers × threads by model."""
    return {each.name: f"{each.workers}x{each.threads}" for each in decided.models}


def slots(decided: Plan, name: str = "a") -> list[tuple[int, ...]]:
    """The CPU ids of each worker of a model."""
    return [slot.cpus for slot in decided.model(name).slots]


def why(decided: Plan, subject: str) -> str:
    """The only reason with this subject: its value and sentence."""
    [reason] = [reason for reason in decided.reasons if reason.subject == subject]
    return f"{reason.value}: {reason.why}"


def files(*runtimes: str) -> dict[str, dict[str, str]]:
    """What an artifact.json says of the files of some runtimes."""
    packages = {"ipex": "intel_extension_for_pytorch", "onnxruntime": "onnxruntime", "openvino": "openvino"}
    return {name: {"file": f"{name}.pt", "package": packages.get(name.removesuffix("-int8"), ""),
                   "cpu_flag": "avx2" if name == "ipex" else ""} for name in runtimes}


def archive(folder: Path, name: str = "a", version: str = "1.0", measured: dict[str, Any] | None = None,
            artifact: dict[str, Any] | None = None, file: str = "") -> Path:
    """Writes an archive as small as one can be, and what was measured of it."""
    path = folder / (file or f"{name}.mar")
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"modelName": name, "modelVersion": version}}))
        if artifact != {}:
            target.writestr("artifact.json", json.dumps(artifact or {
                "runtime": "eager", "batch_size": 4, "max_batch_delay_ms": 5, "files": files("eager")}))
    if measured is not None:
        path.with_name(f"{path.stem}.measured.json").write_text(json.dumps(measured))
    return path
