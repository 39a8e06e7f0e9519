"""Plans and server answers as small as the tests of serving/ need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from configs.plan import ModelPlan, Plan, Pod, Slot
from serving.client import ModelStatus, WorkerStatus
from serving.processes import format_cpus

MakePlan = Callable[..., Plan]
MakeProcess = Callable[..., Path]
MakeStatus = Callable[..., ModelStatus]


@pytest.fixture
def make_plan() -> MakePlan:
    """A plan from {model name: [CPUs of each slot]}; workers are as many as slots unless told."""

    def make(slots: dict[str, Sequence[tuple[int, ...]]], placement: str = "exclusive", workers: int = 0,
             max_batch_delay_ms: int = 1) -> Plan:
        models = tuple(
            ModelPlan(name=name, version="1.0", archive=f"{name}.mar", runtime="eager", workers=workers or len(cpus),
                      threads=len(cpus[0]), batch_size=1, max_batch_delay_ms=max_batch_delay_ms, response_timeout_s=20,
                      startup_timeout_s=60, resident_bytes=0, slots=tuple(Slot(each, 0, None) for each in cpus))
            for name, cpus in slots.items())
        pod = Pod(cpu_limit=None, cpu_limit_source="", allowed_cpus=(0, 1, 2, 3), allowed_source="", physical_cores=4,
                  sockets=1, nodes=0, memory_limit=None, memory_source="", pids_limit=None, cpu_model="")
        return Plan(pod=pod, torchserve_version="0.12.0", placement=placement, budget=4, launcher=False,
                    launcher_args="", ipex=False, spin=False, jvm_cpus=4, jvm_heap_mb=256, models=models, reasons=())

    return make


@pytest.fixture
def make_status() -> MakeStatus:
    """A model's status from (worker id, pid) or (worker id, pid, status) of each worker."""

    def make(name: str, *workers: tuple[str, int] | tuple[str, int, str], pending: int = 0) -> ModelStatus:
        listed = tuple(WorkerStatus(each[0], each[1], each[2] if len(each) > 2 else "READY", 0) for each in workers)
        return ModelStatus(name, "1.0", listed, len(listed), len(listed), pending, 100 - pending)

    return make


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """An empty stand-in for /proc."""
    root = tmp_path / "proc"
    root.mkdir()
    return root


@pytest.fixture
def make_process(proc: Path) -> MakeProcess:
    """Writes a process into `proc`: its threads' CPUs, the main thread's first. Returns its folder."""

    def make(pid: int, *cpus: tuple[int, ...], parent: int = 1, name: str = "python3", state: str = "S",
             ticks: int = 7, command: Sequence[str] = ("python3",)) -> Path:
        folder = proc / str(pid)
        stat = (f"{{}} ({name}) {state} {parent} 1 1 0 -1 4194560 0 0 0 0 {ticks} 3 0 0 20 0 {len(cpus)} 0 4711 "
                "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 {} 0 0 0 0 0\n")
        for tid, allowed in enumerate(cpus or ((0,),), start=pid):
            task = folder / "task" / str(tid)
            task.mkdir(parents=True)
            (task / "stat").write_text(stat.format(tid, allowed[-1]))
            (task / "status").write_text(f"Name:\t{name}\nCpus_allowed_list:\t{format_cpus(allowed)}\n")
        (folder / "stat").write_text(stat.format(pid, 0))
        (folder / "cmdline").write_bytes(b"".join(part.encode() + b"\0" for part in command))
        return folder

    return make
