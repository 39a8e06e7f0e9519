"""Workers claim slots of a plan, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.plan import ModelPlan, Plan, Pod, Slot

ROOT = Path(__file__).resolve().parents[3]
CPUS = sorted(os.sched_getaffinity(0))
# Claims as often as it is asked to: importing torch takes longer than everything else here.
WORKER = """
import json, os, sys
import torch
from handlers.placement import take_place
print("ready", flush=True)
for line in sys.stdin:
    wanted = json.loads(line)
    os.environ.update(wanted["environment"])
    if wanted["cpus"]:
        os.sched_setaffinity(0, wanted["cpus"])
    place = take_place(wanted["model"])
    torch.mm(torch.ones(300, 300), torch.ones(300, 300))  # an OpenMP runtime binds its threads now, or never
    threads = [sorted(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")]
    print(json.dumps({"pid": os.getpid(), "slot": place.slot, "claimed": place.cpus, "threads": torch.get_num_threads(),
                      "interop": torch.get_num_interop_threads(), "cpus": sorted(os.sched_getaffinity(0)),
                      "all threads": threads, "source": place.source}), flush=True)
"""

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


class Worker:
    """A process that has imported handlers.placement and waits to be told to claim."""

    def __init__(self, **environment: str) -> None:
        variables = {name: value for name, value in os.environ.items()
                     if name not in ("TSCPU_PLAN", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**variables, "PYTHONPATH": str(ROOT), **environment})

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def wait_until_ready(self) -> None:
        assert self._line() == "ready\n"

    def claim(self, plan: Path | None = None, model: str = "a", cpus: list[int] | None = None,
              **environment: str) -> dict[str, Any]:
        """Takes a place, having first been pinned to `cpus`."""
        assert self.process.stdin is not None
        named = {"TSCPU_PLAN": str(plan) if plan else ""}
        self.process.stdin.write(json.dumps({"environment": named | environment, "model": model,
                                             "cpus": cpus or CPUS}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        assert found["pid"] == self.process.pid
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture(scope="module")
def workers() -> Iterator[SimpleNamespace]:
    """Four processes, started side by side."""
    made = {"first": Worker(), "second": Worker(OMP_NUM_THREADS="2", GOMP_CPU_AFFINITY=str(CPUS[0])),
            "third": Worker(), "other": Worker()}
    try:
        for one in made.values():
            one.wait_until_ready()
        yield SimpleNamespace(**made)
    finally:
        for one in made.values():
            one.kill()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """plan.json with two one-CPU slots of model a, and one slot of two CPUs for model b."""
    def model(name: str, threads: int, *slots: tuple[int, ...]) -> ModelPlan:
        return ModelPlan(name=name, version="1.0", archive=f"{name}.mar", runtime="eager", workers=len(slots),
                         threads=threads, batch_size=1, max_batch_delay_ms=1, response_timeout_s=20,
                         startup_timeout_s=60, resident_bytes=0, slots=tuple(Slot(cpus, 0, None) for cpus in slots))

    pod = Pod(cpu_limit=None, cpu_limit_source="", allowed_cpus=tuple(CPUS), allowed_source="",
              physical_cores=len(CPUS), sockets=1, nodes=0, memory_limit=None, memory_source="", pids_limit=None,
              cpu_model="")
    whole = Plan(pod=pod, torchserve_version="0.12.0", placement="exclusive", budget=2, launcher=False,
                 launcher_args="", ipex=False, spin=False, jvm_cpus=2, jvm_heap_mb=256, reasons=(),
                 models=(model("a", 1, (CPUS[0],), (CPUS[1],)), model("b", 2, (CPUS[1], CPUS[0]))))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(whole.to_dict()))
    return path


def test_slots_are_held_once_freed_by_death_and_shared_only_when_none_is_free(workers: Any, plan: Path) -> None:
    one, two = workers.first.claim(plan), workers.second.claim(plan)
    assert [one["slot"], two["slot"]] == [0, 1]
    assert [one["cpus"], two["cpus"]] == [[CPUS[0]], [CPUS[1]]]
    assert one["threads"] == two["threads"] == 1  # against the second's OMP_NUM_THREADS
    assert two["all threads"] == [[CPUS[1]]] * len(two["all threads"])  # and against its GOMP_CPU_AFFINITY
    third = workers.third.claim(plan)
    assert "all 2 slots of the plan are taken: shares slot" in third["source"]
    assert third["cpus"] in ([CPUS[0]], [CPUS[1]])
    reports = {path.name: json.loads(path.read_text()) for path in (plan.parent / "workers").iterdir()}
    assert set(reports) == {f"{each['pid']}.json" for each in (one, two, third)}
    assert reports[f"{two['pid']}.json"]["cpus"] == [CPUS[1]]
    workers.first.kill()
    replacement = workers.third.claim(plan)
    assert replacement["slot"] == 0
    assert replacement["cpus"] == [CPUS[0]]
    assert replacement["source"] == "slot 0 of 2 in the plan"


def test_p11_a_launchers_pin_is_kept(workers: Any, plan: Path) -> None:
    found = workers.other.claim(plan, cpus=[CPUS[1]])
    assert found["slot"] == 1
    assert "already pinned" in found["source"]


def test_a_slot_of_two_cpus_in_any_order(workers: Any, plan: Path) -> None:
    found = workers.other.claim(plan, model="b")
    assert (found["slot"], found["threads"], found["interop"]) == (0, 2, 1)
    assert found["cpus"] == sorted(CPUS[:2])
    if len(CPUS) == 2:
        assert "already pinned" in found["source"]


@pytest.mark.parametrize(("said", "threads"), [("", 1), ("2", 2), ("999", len(CPUS)), ("02", 2), ("2,1", 2), ("0", 1),
                                               ("-2", 1), ("many", 1), ("²", 1)])
def test_p2_without_a_plan_the_users_word_or_one_thread(workers: Any, said: str, threads: int) -> None:
    found = workers.other.claim(OMP_NUM_THREADS=said)
    assert (found["slot"], found["threads"], found["cpus"]) == (None, threads, CPUS)
    assert "no plan: TSCPU_PLAN is not set" in found["source"]
    words = "one thread" if said in ("", "0", "-2", "many", "²") else "threads from OMP_NUM_THREADS"
    assert found["source"].endswith(words)


def test_a_plan_without_this_model_is_said(workers: Any, plan: Path) -> None:
    found = workers.other.claim(plan, model="c")
    assert (found["slot"], found["cpus"]) == (None, CPUS)
    assert f"{plan} has no model 'c'" in found["source"]
