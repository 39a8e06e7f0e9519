"""The pod's own state as Prometheus metrics: workers, where they stand, threads, quota and throttling.

TorchServe's /metrics knows requests; none of this. Only turning into metrics lives here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from configs.errors import ToolkitError
from configs.limits import read_throttling
from configs.plan import Plan
from serving.audit import Audit
from serving.health import Health


class _Once:
    """A collector of metrics that are made already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(plan: Plan, health: Health, audit: Audit | None) -> bytes:
    """The text that /metrics answers.

    Args:
        audit: None while TorchServe does not say which workers it has; then only what is known without it is told.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once([*_health(health), *_plan(plan), *_workers(plan, audit), *_quota(plan)]))
    return generate_latest(registry)


def _gauge(name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tscpu_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _health(health: Health) -> list[Metric]:
    models = health.models
    return [
        _gauge("ready", "1 while every planned model has all its workers and requests are wanted", [],
               [([], float(health.ready))]),
        _gauge("workers_ready", "Workers that TorchServe calls READY", ["model"],
               [([model.name], model.ready) for model in models]),
        _gauge("workers_planned", "Workers of the plan", ["model"],
               [([model.name], model.planned) for model in models]),
    ]


def _plan(plan: Plan) -> list[Metric]:
    return [
        _gauge("thread_budget", "Threads that all workers together may run", [], [([], plan.budget)]),
        _gauge("threads_planned", "Torch threads of each worker", ["model"],
               [([model.name], model.threads) for model in plan.models]),
    ]


def _workers(plan: Plan, audit: Audit | None) -> list[Metric]:
    if audit is None:
        return []
    present = [row for row in audit.rows if row.pid is not None]
    return [
        _gauge("audit_clean", "1 if every worker is there and stands where the plan wants it", [],
               [([], float(audit.clean))]),
        _gauge("workers_by_verdict", "Workers by what the audit says of them", ["model", "verdict"],
               [([model, verdict], count) for (model, verdict), count in _counts(audit).items()]),
        _gauge("worker_allowed_cpus", "CPUs that a worker may run on", ["model", "pid"],
               [([row.model, str(row.pid)], len(row.cpus)) for row in present]),
        _gauge("worker_computing_threads", "Threads of a worker that have had a share of its CPU time",
               ["model", "pid"], [([row.model, str(row.pid)], row.computing) for row in present]),
        _gauge("worker_tasks", "Threads of a worker of every kind", ["model", "pid"],
               [([row.model, str(row.pid)], row.tasks) for row in present]),
    ]


def _counts(audit: Audit) -> dict[tuple[str, str], int]:
    """Zero is told for OK, so that a model whose workers are all misplaced does not just lack a line."""
    found = {(row.model, "OK"): 0 for row in audit.rows}
    for row in audit.rows:
        found[row.model, row.verdict] = found.get((row.model, row.verdict), 0) + 1
    return found


def _quota(plan: Plan) -> list[Metric]:
    if plan.pod.cpu_limit is None:
        return []
    limit = _gauge("cpu_limit_cpus", "The CPU limit of the pod: quota / period", [], [([], plan.pod.cpu_limit)])
    try:
        seen = read_throttling(Path(plan.pod.cpu_stat)) if plan.pod.cpu_stat else None
    except ToolkitError:  # a scrape is no place to fail: the series ends, which alerts can see
        seen = None
    if seen is None:
        return [limit]
    counters = (("cfs_periods", "Periods of the quota in which something wanted to run", seen.periods),
                ("cfs_throttled_periods", "Periods in which the quota was used up", seen.throttled_periods),
                ("cfs_throttled_seconds", "Time for which threads were stopped, summed as the kernel does",
                 seen.throttled_seconds))
    return [limit, *(CounterMetricFamily(f"tscpu_{name}", text, value=value) for name, text, value in counters)]
