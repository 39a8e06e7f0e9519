"""Workers claim slots of a plan, as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CPUS = sorted(os.sched_getaffinity(0))
WORKER = """
import json, os, sys
if len(sys.argv) > 1:
    os.sched_setaffinity(0, [int(sys.argv[1])])
import torch
from handlers.placement import take_place
place = take_place("a")
print(json.dumps({"slot": place.slot, "cpus": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(),
                  "source": place.source}), flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@contextmanager
def worker(plan: Path | None, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    variables.pop("TSCPU_PLAN", None)
    if plan is not None:
        variables["TSCPU_PLAN"] = str(plan)
    process = subprocess.Popen([sys.executable, "-c", WORKER, *arguments], env=variables, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two one-CPU slots of model a."""
    slots = [{"cpus": [cpu], "socket": 0, "node": None} for cpu in CPUS[:2]]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"models": [{"name": "a", "threads": 1, "slots": slots}]}))
    return path


def test_slots_are_held_once_freed_by_death_and_shared_only_when_none_is_free(plan: Path) -> None:
    with worker(plan) as (first, one), worker(plan, OMP_NUM_THREADS="2", GOMP_CPU_AFFINITY=str(CPUS[0])) as (_, two):
        assert [one["slot"], two["slot"]] == [0, 1]
        assert [one["cpus"], two["cpus"]] == [[CPUS[0]], [CPUS[1]]]
        assert one["threads"] == two["threads"] == 1
        with worker(plan) as (_, third):
            assert "all 2 slots of the plan are taken" in third["source"]
        first.kill()
        first.wait()
        with worker(plan) as (_, replacement):
            assert replacement["slot"] == 0 and replacement["cpus"] == [CPUS[0]]


def test_a_launchers_pin_is_kept(plan: Path) -> None:
    with worker(plan, str(CPUS[1])) as (_, found):
        assert found["slot"] == 1 and "already pinned" in found["source"]


def test_without_a_plan_the_users_word_or_one_thread(plan: Path) -> None:
    with worker(None, OMP_NUM_THREADS="") as (_, found):
        assert (found["slot"], found["threads"]) == (None, 1) and "TSCPU_PLAN is not set" in found["source"]
    with worker(None, OMP_NUM_THREADS="2") as (_, found):
        assert found["threads"] == 2
