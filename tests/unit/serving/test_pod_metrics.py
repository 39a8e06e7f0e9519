"""serving/pod_metrics.py: the pod's state as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from configs.plan import Plan
from serving.audit import audit
from serving.client import ModelStatus
from serving.health import Health, ModelHealth
from serving.pod_metrics import exposition

HEALTH = Health(True, True, False, "ready", (ModelHealth("food", 1, 2, "ready"),))


def values(text: bytes) -> dict[tuple[str, ...], float]:
    """{(name, label value, ...): value}, as Prometheus's own parser reads it."""
    return {(sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text.decode()) for sample in family.samples}


def test_workers_by_verdict(proc: Path, make_plan: Callable[..., Plan], make_process: Callable[..., Path],
                            make_status: Callable[..., ModelStatus]) -> None:
    make_process(10, (0,))
    make_process(11, (0, 1, 2, 3))
    plan = make_plan({"food": [(0,), (1,)]})
    found = values(exposition(plan, HEALTH, audit(plan, [make_status("food", ("9000", 10), ("9001", 11))], proc)))
    assert found["tscpu_workers_by_verdict", "food", "OK"] == 1
    assert found["tscpu_workers_by_verdict", "food", "MISPLACED"] == 1
    assert found["tscpu_audit_clean",] == 0
    assert found["tscpu_worker_allowed_cpus", "food", "11"] == 4
    assert found["tscpu_ready",] == 0
    assert (found["tscpu_workers_ready", "food"], found["tscpu_workers_planned", "food"]) == (1, 2)


def test_before_torchserve_answers_nothing_is_said_of_workers(make_plan: Callable[..., Plan]) -> None:
    found = values(exposition(make_plan({"food": [(0,)]}), HEALTH, None))
    assert found["tscpu_thread_budget",] == 4
    assert not any(name[0].startswith(("tscpu_worker_", "tscpu_audit", "tscpu_cfs", "tscpu_cpu_limit"))
                   for name in found)


def test_throttling_counters(tmp_path: Path, make_plan: Callable[..., Plan]) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text("nr_periods 100\nnr_throttled 40\nthrottled_time 2500000000\n")
    plan = make_plan({"food": [(0,)]})
    plan = replace(plan, pod=replace(plan.pod, cpu_limit=1.5, cpu_stat=str(stat)))
    found = values(exposition(plan, HEALTH, None))
    assert found["tscpu_cpu_limit_cpus",] == 1.5
    assert found["tscpu_cfs_throttled_seconds_total",] == 2.5
    assert (found["tscpu_cfs_periods_total",], found["tscpu_cfs_throttled_periods_total",]) == (100, 40)
    stat.unlink()
    assert ("tscpu_cfs_periods_total",) not in values(exposition(plan, HEALTH, None))
