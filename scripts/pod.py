"""What the commands about a pod share: machine + serving file + archives → plan, and the plan as one table."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from rich.table import Table

from configs.archives import read_model_store
from configs.limits import read_limits
from configs.plan import Plan
from configs.planning import make_plan, thread_budget
from configs.settings import Settings, read_settings
from configs.topology import format_cpu_list, read_topology
from configs.torchserve import installed_version
from scripts.console import table


def plan_pod(machine: Path, serving: Path | None, model_store: Path,
             version: str | None = None) -> tuple[Plan, Settings]:
    """Reads a machine, a serving file and a model store, and decides.

    Args:
        machine: "/" or a recorded file tree.
        version: of TorchServe, if not the installed one.
    """
    settings = read_settings(serving)
    topology = read_topology(machine)
    limits = read_limits(machine, topology.online)
    models = read_model_store(model_store, list(settings.models))
    packages = {built.package for model in models for built in model.built if built.package}
    installed = None if machine != Path("/") else {name for name in packages if importlib.util.find_spec(name)}
    return make_plan(topology, limits, settings, models, version or installed_version(), installed), settings


def budget() -> int:
    """Threads that this pod may run.

    Raises:
        MachineError: it does not say, as where there is no /proc.
    """
    topology = read_topology()
    return thread_budget(topology, read_limits(online=topology.online))


def reasons_table(plan: Plan) -> Table:
    """Every decision, its value, and why."""
    return table(f"Plan for this pod ({plan.pod.cpu_model}, TorchServe {plan.torchserve_version})",
                 ["decision", "value", "because"], [[each.subject, each.value, each.why] for each in plan.reasons])


def summary_table(plan: Plan) -> Table:
    """One line a model."""
    return table("Plan", ["model", "runtime", "workers × threads", "batch", "CPUs of each worker", "placement"],
                 [[model.name, model.runtime, f"{model.workers} × {model.threads}", model.batch_size,
                   " | ".join(format_cpu_list(slot.cpus) for slot in model.slots), plan.placement]
                  for model in plan.models])


def torchserve_command() -> Path | None:
    """The torchserve beside this interpreter, whatever PATH says."""
    beside = Path(sys.executable).with_name("torchserve")
    found = beside if beside.is_file() else shutil.which("torchserve")
    return Path(found) if found else None
