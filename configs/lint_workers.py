"""What a config.properties says of models, workers and the CPU launcher, and what is wrong there: a part of `lint`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from configs.findings import Report, filled_in_later, nearest
from configs.torchserve import MODEL_COUNTS, MODEL_KEYS, YAML_KEYS

Archives = Sequence[tuple[str, str]]  # name and version of each model
# TorchServe adds these itself, by their names in any launcher.
_OWN = ("--ninstances", "--ninstance", "--rank", "--instance-idx")
_LISTS, _WIDTHS = ("--core-list", "--cores-list"), ("--ncores-per-instance", "--ncore-per-instance")
_EXAMPLE = 'models={"MODEL":{"VERSION":{"minWorkers":1,"maxWorkers":1}}}'
_DEFAULTS = {"maxBatchDelay": "100 ms", "batchSize": "1", "responseTimeout": "120 s", "startupTimeout": "120 s"}


@dataclass(frozen=True)
class Model:
    """One model of the `models` JSON; workers None where it does not say."""

    name: str
    workers: int | None


def check_models(report: Report, archives: Archives | None) -> list[Model] | None:
    """Checks the `models` JSON against itself and the archives.

    Returns:
        Its models; None where it cannot be read.
    """
    entry = report.keys.get("models")
    if entry is None:
        return []
    if filled_in_later(entry.value):
        return None
    try:
        data = json.loads(entry.value)
    except ValueError as error:
        report.error(entry, f"the value of models is no JSON ({error}): TorchServe ends", _EXAMPLE)
        return None
    found = []
    for name, versions in (data if isinstance(data, dict) else {"": data}).items():
        if not isinstance(versions, dict) or not all(isinstance(each, dict) for each in versions.values()):
            report.error(entry, f"model {name!r} has no versions with keys in them", _EXAMPLE, f'"{name}"')
            continue
        if archives is not None:
            _check_archive(report, name, list(versions), archives)
        for version, keys in versions.items():
            _check_keys(report, f"{name} {version}", keys)
        workers = [count for keys in versions.values() if (count := _count(keys, "minWorkers"))]
        found.append(Model(name, sum(workers) if workers else None))
    return found


def _check_archive(report: Report, name: str, versions: list[str], archives: Archives) -> None:
    there = [version for model, version in archives if model == name]
    if not there:
        names = sorted({model for model, _ in archives})
        meant = nearest(name, names)
        report.error("models", f"no archive holds a model {name!r}: what is said of it is ignored",
                     f"{meant} perhaps?" if meant else "there are " + (", ".join(names) or "none"), f'"{name}"')
        return
    for version in versions:
        if version not in there:
            report.error("models", f"the archive of {name} has version {' and '.join(there)}: what is said of "
                         f"{version} is ignored", f'{{"{name}":{{"{there[0]}":{{', f'"{version}"')


def _check_keys(report: Report, model: str, keys: dict[str, Any]) -> None:
    for key, value in keys.items():
        needle = f'"{key}"'
        if key in YAML_KEYS:
            report.error("models", f"{model}: {key} is ignored here: it belongs into the archive's model-config.yaml",
                         "job_queue_size, for all models" if key == "jobQueueSize" else "build the archive with it",
                         needle)
        elif key not in MODEL_KEYS:
            meant = nearest(key.replace("_", ""), MODEL_KEYS)
            report.error("models", f"{model}: there is no key {key}, and it is ignored",
                         f"{meant} perhaps?" if meant else "one of " + ", ".join(sorted(MODEL_KEYS)), needle)
        elif key in MODEL_COUNTS and _count(keys, key) is None:
            report.error("models", f"{model}: {key} {json.dumps(value)} is no whole number above zero: TorchServe "
                         f"takes {_DEFAULTS.get(key, 'its default number of workers')}", f"{key}: 1 or more", needle)
    least, most = _count(keys, "minWorkers"), _count(keys, "maxWorkers")
    if least and most and least > most:
        report.error("models", f"{model}: minWorkers {least} are more than maxWorkers {most}", "make them equal",
                     '"minWorkers"')
    elif least and most and least < most:
        report.note("models", f"{model}: TorchServe starts minWorkers ({least}), and never goes up to maxWorkers "
                    f"({most}) by itself", "make them equal", '"maxWorkers"')


def _count(keys: dict[str, Any], key: str) -> int | None:
    value = keys.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def check_launcher(report: Report, models: list[Model] | None) -> None:
    """Checks cpu_launcher_args, which go to a program that TorchServe tries, and does without where it fails."""
    key, arguments = "cpu_launcher_args", report.value("cpu_launcher_args")
    enabled = report.says("cpu_launcher_enable")
    if enabled and len(models or ()) > 1:
        report.error("cpu_launcher_enable", "the launcher counts each model's workers from 0: all models stand on the "
                     "same cores", "cpu_launcher_enable=false, and workers that pin themselves")
    if enabled and not arguments:
        report.warning("cpu_launcher_enable", "without arguments the launcher divides all cores of the node, whatever "
                       "this pod may use", f"{key}=--core-list 0,1,2,3 --ncores-per-instance 1")
    if not arguments:
        return
    if not enabled:
        report.error(key, "they have no effect without the launcher", "cpu_launcher_enable=true")
    given = _options(arguments)
    for own in (option for option in given if option in _OWN):
        report.error(key, f"{own} is TorchServe's own: it adds one for each worker", "leave it out")
    if "  " in arguments or '"' in arguments or "'" in arguments:
        report.error(key, "TorchServe splits at each single blank, and knows no quotes", "single blanks, no quotes")
    _check_core_list(report, given, models)


def _options(arguments: str) -> dict[str, str]:
    """Each option with what follows it, up to the next."""
    found: dict[str, str] = {}
    option = ""
    for word in arguments.split():
        if word.startswith("--"):
            option, _, value = word.partition("=")
            option = option.replace("_", "-")
            found[option] = value
        else:
            found[option] = f"{found.get(option, '')} {word}".strip()
    return found


def _check_core_list(report: Report, given: dict[str, str], models: list[Model] | None) -> None:
    key = "cpu_launcher_args"
    name = next((name for name in _LISTS if name in given), None)
    if name is None:
        return
    cores, width = given[name], next((given[width] for width in _WIDTHS if width in given), "")
    if name == "--core-list" and not re.fullmatch(r"[0-9]+(,[0-9]+)*", cores):
        report.error(key, f"--core-list {cores}: the launcher knows no ranges, and TorchServe splits at blanks; it "
                     "fails, and workers start unpinned", "--core-list 0,1,2,3: CPU ids and commas, nothing else")
    elif not re.fullmatch("[1-9][0-9]{0,5}", width):
        report.error(key, f"{name} without --ncores-per-instance: the launcher fails, and workers start unpinned",
                     "--ncores-per-instance 1, or as many as a worker has threads")
    elif name == "--core-list" and models and len(models) == 1 and models[0].workers:
        count, workers = cores.count(",") + 1, models[0].workers
        if workers * int(width) > count:
            report.error(key, f"{workers} workers × {width} cores are {workers * int(width)}, and the list has "
                         f"{count}: the last workers do not start", "a longer list, or fewer workers")
        elif workers == 1 and count > int(width):
            report.error(key, f"one worker of {width} cores, and a list of {count}: the launcher starts "
                         f"{count // int(width)} copies of it", f"--core-list with {width} only")


def check_workers(report: Report, models: list[Model] | None, budget: int | None, archives: Archives | None) -> None:
    """Checks how many workers there will be, and their threads against the budget."""
    if models is None:
        return
    default = report.value("default_workers_per_model")
    each = int(default) if re.fullmatch("[1-9][0-9]{0,5}", default) else None
    unsaid = [model.name for model in models if model.workers is None]
    unsaid += sorted({name for name, _ in archives or ()} - {model.name for model in models})
    if each is None and not filled_in_later(default) and (unsaid or not models):
        report.warning("default_workers_per_model", "default_workers_per_model decides for "
                       + (", ".join(unsaid) or "all models") + f" and is {default or 'missing'}: TorchServe starts a "
                       "worker for each CPU that it counts", "default_workers_per_model=1")
    workers = sum(model.workers or 0 for model in models) + len(unsaid) * (each or 0)
    given = _options(report.value("cpu_launcher_args")) if report.says("cpu_launcher_enable") else {}
    threads = int(next((given[name] for name in _WIDTHS if re.fullmatch("[1-9][0-9]{0,5}", given.get(name, ""))), 1))
    if budget is not None and workers * threads > budget:
        report.error("models" if models else "default_workers_per_model",
                     f"{workers} workers × {threads} threads are {workers * threads}, and this pod has a budget of "
                     f"{budget}", f"workers × threads ≤ {budget} over all models", '"minWorkers"')
