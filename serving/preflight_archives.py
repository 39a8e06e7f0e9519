"""What is asked of the archives before the JVM starts: TorchServe registers a broken one with no more than a warning.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from configs.archives import ServedModel, read_model_store
from configs.errors import SettingsError
from configs.plan import Plan
from configs.settings import Settings
from serving.preflight_probes import IPEX, Versions, major_minor
from serving.preflight_problem import Problem, Severity, from_error


def archives(plan: Plan | None, settings: Settings, model_store: Path, installed: Versions) -> list[Problem]:
    """Every archive that is to be served: readable to its last byte, as planned, and built with what is installed.

    Args:
        plan: None where planning failed, perhaps at the first of several broken archives: then it is what the
            serving file asks for.
        installed: of the workers' interpreter; empty where unknown.
    """
    found: list[Problem] = []
    for name in names(plan, settings, model_store):
        try:
            [served] = read_model_store(model_store, [name])
        except SettingsError as error:  # in the same words as planning
            found.append(from_error(error))
            continue
        path = model_store / served.archive
        if bad := broken_entry(path):
            found.append(Problem("error", f"this archive is damaged: {path}", bad,
                                 f"copy it again, or build it: `tscpu build {name}`"))
            continue
        runtime = plan.model(name).runtime if plan else served.runtime
        if plan:
            found += _against_plan(served, plan, path)
        if installed:
            found += _against_installed(served, runtime, _versions(path), installed, path)
    return found


def names(plan: Plan | None, settings: Settings, model_store: Path) -> list[str]:
    """The models to be served."""
    if plan:
        return [model.name for model in plan.models]
    return list(settings.models) or sorted(path.stem for path in model_store.glob("*.mar"))


def unpacked(paths: list[Path]) -> list[tuple[int, int]]:
    """Bytes and files of each archive once it is unpacked; a broken one counts nothing, it is reported elsewhere."""
    found = []
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                found.append((sum(entry.file_size for entry in archive.infolist()), len(archive.infolist())))
        except (OSError, zipfile.BadZipFile):
            continue
    return found


def broken_entry(path: Path) -> str:
    """The first entry whose checksum is wrong, in words; empty when all are right. About a second for a GB."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (OSError, EOFError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        return str(error)
    return f"the checksum of {bad} is wrong" if bad else ""


def _versions(path: Path) -> dict[str, str]:
    """Of the packages that wrote the network; empty in an archive that does not say."""
    with zipfile.ZipFile(path) as archive:
        artifact: Any = json.loads(archive.read("artifact.json"))
    versions = artifact.get("versions", {})
    return {str(name): str(version) for name, version in versions.items()} if isinstance(versions, dict) else {}


def _against_plan(served: ServedModel, plan: Plan, path: Path) -> list[Problem]:
    """An archive that was replaced after planning, or a plan that was written for another."""
    model = plan.model(served.name)
    pairs = (("version", served.version, model.version, "TorchServe then ignores what the plan says of the model"),
             ("batch size", served.batch_size, model.batch_size, "its handler takes no other batches"))
    found = [Problem("error", f"this archive is not the one that was planned: {path}",
                     f"{what} {has}, planned {wanted}: {then}", "plan again")
             for what, has, wanted, then in pairs if has != wanted]
    if model.runtime not in {built.runtime for built in served.built}:
        found.append(Problem("error", f"this archive was not built for the runtime {model.runtime}: {path}",
                             "it has " + ", ".join(built.runtime for built in served.built),
                             f"`tscpu build --runtime {model.runtime} {served.name}`"))
    return found


def _against_installed(served: ServedModel, runtime: str, built: dict[str, str], installed: Versions,
                       path: Path) -> list[Problem]:
    """Built with another torch, IPEX or Python than the workers have, or for a runtime whose package they have not.

    For the ipex runtime another release is an error, since the graph holds that release's own operators, as it is for
    a network of a newer torch. Newer torch reads what older ones wrote, but nobody has tried this one with it.
    """
    found = []
    needed = next((each.package for each in served.built if each.runtime == runtime), "").replace("_", "-")
    if needed and needed not in installed and needed != IPEX:  # that has a probe of its own
        found.append(Problem("error", f"workers cannot open the runtime {runtime}: {path}",
                             f"the package {needed} is not installed",
                             f"pip install {needed}, or name another runtime in serving.yaml"))
    for name in ("torch", "python", *([IPEX] if runtime == "ipex" else [])):
        if name not in built or name not in installed or major_minor(built[name]) == major_minor(installed[name]):
            continue
        severity: Severity = "error"
        if name == "python" or (runtime != "ipex" and _numbers(built[name]) < _numbers(installed[name])):
            severity = "warning"
        found.append(Problem(severity, f"this archive was built with another {name}: {path}",
                             f"built with {built[name]}, installed is {installed[name]}: nobody has tried it there",
                             f"`tscpu build {served.name}` here, or install {name} {built[name]}"))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in major_minor(version).split(".") if part.isdigit())
