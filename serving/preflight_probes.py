"""What is asked of other programs before the JVM starts: Java, torchserve, the CPU launcher, the workers' Python, IPEX.

Each probe runs in the environment that TorchServe will get. A program that hangs is ended, and is a finding.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from configs.plan import Plan
from configs.torchserve import launcher_of
from serving.preflight_problem import Problem, Ran, run
from serving.processes import format_cpus

OLDEST_JAVA = 11
QUICK_SECONDS = 30.0  # for what takes a twentieth of one
# TorchServe waits for ever for the launcher's dry run, and two minutes for a worker's imports.
LAUNCHER_SECONDS = IMPORT_SECONDS = 120.0
IPEX = "intel-extension-for-pytorch"
LAUNCHER_OFF = "or set `launcher: off` in serving.yaml: workers then pin themselves"
EAGER = "or build the models for torch alone: `tscpu build --runtime eager`"
_VERSIONS = f"""
import importlib.metadata, json, platform
found = {{"python": platform.python_version()}}
for name in ("torch", {IPEX!r}, "onnxruntime", "openvino"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
# _exit: taking the interpreter down again costs as much CPU time as the import
_IMPORT = "import os, torch, intel_extension_for_pytorch; os._exit(0)"

Versions = Mapping[str, str]  # "python", "torch" and the runtimes' packages, where installed


def torchserve(command: Path | None) -> list[Problem]:
    """Whether there is a torchserve to be started."""
    if command is not None:
        return []
    return [Problem("error", "there is no torchserve command", "neither beside this interpreter nor on PATH",
                    "make setup (or pip install torchserve==0.12.0)")]


def java(environment: Mapping[str, str], folder: Path) -> list[Problem]:
    """The Java that torchserve will start: $JAVA_HOME/bin/java, or the one on PATH."""
    home = environment.get("JAVA_HOME")
    install = "apt-get install openjdk-17-jre-headless" + (", and correct or unset JAVA_HOME" if home else "")
    path = str(Path(home, "bin", "java")) if home else which("java", environment)
    if path is None or not os.access(path, os.X_OK):
        return [Problem("error", "TorchServe needs Java, and there is none",
                        f"JAVA_HOME is set, and there is no {path}" if home else "no java on PATH", install)]
    ran = run([path, "-version"], environment, folder, QUICK_SECONDS)
    if ran.code != 0:
        return [Problem("error", f"Java does not start: {path}", ran.last_words, install)]
    found = re.search(r'version "(?:1\.)?(\d+)', ran.err + ran.out)
    if found is None:
        return [Problem("warning", f"the version of Java is unknown: {path}", ran.last_words,
                        f"TorchServe needs {OLDEST_JAVA} or later")]
    if int(found[1]) < OLDEST_JAVA:
        return [Problem("error", f"this Java is too old: {path}",
                        f"it is Java {found[1]}; TorchServe needs {OLDEST_JAVA} or later", install)]
    return []


def versions(python: Path, environment: Mapping[str, str], folder: Path) -> tuple[Versions, list[Problem]]:
    """What the workers' interpreter has installed, from its packages' metadata: nothing is imported."""
    try:
        ran = run([python, "-c", _VERSIONS], environment, folder, QUICK_SECONDS)
    except OSError as error:
        ran = Ran(127, "", str(error))
    if ran.code == 0:
        found: Versions = json.loads(ran.out)
        if "torch" in found:
            return found, []
        why, remedy = f"{python} has no torch: no worker can start", "make setup (or pip install torch==2.8.0)"
    else:
        why, remedy = ran.last_words, "make setup: the workers run on this interpreter"
    return {}, [Problem("error", f"the workers' Python is unusable: {python}", why, remedy)]


def ipex(plan: Plan, python: Path, environment: Mapping[str, str], found: Versions, folder: Path) -> list[Problem]:
    """Whether workers will be able to import IPEX: versions first, and only if they fit, the import itself. That is in
    a process of its own, which a CPU without the instructions that IPEX was built for ends with a signal.

    The import takes 4.7 s of one CPU's time when the files are cached, more when they are not. It is not lost: the
    workers import the same files a moment later. It overlaps with all other checks.

    Args:
        found: of `versions`; empty where that has failed.
    """
    what = "workers cannot import IPEX"
    if not plan.ipex or not found:
        return []
    if IPEX not in found:
        return [Problem("error", what, f"{IPEX} is not installed, and archives were built for it",
                        f"pip install {IPEX}=={major_minor(found['torch'])}.*, {EAGER}")]
    if major_minor(found[IPEX]) != major_minor(found["torch"]):
        return [Problem("error", what, f"{IPEX} {found[IPEX]} does not work with torch {found['torch']}: their "
                                       "major.minor must be the same",
                        f"pip install {IPEX}=={major_minor(found['torch'])}.*, {EAGER}")]
    ran = run([python, "-c", _IMPORT], environment, folder, IMPORT_SECONDS)
    if ran.code == 0:
        return []
    if ran.code is None:
        return [Problem("error", what, f"the import took longer than {IMPORT_SECONDS:.0f} s: TorchServe gives a worker "
                                       "no more", "give the pod more CPU, or faster storage for its image")]
    if ran.code > 0:
        return [Problem("error", what, ran.last_words,
                        f"install {IPEX} again, with the libraries it asks for, {EAGER}")]
    meaning, remedy = _MEANINGS.get(-ran.code, ("it crashed", f"install torch and {IPEX} again, {EAGER}"))
    return [Problem("error", what, f"the import died of {ran.ended}: {meaning.format(cpu=plan.pod.cpu_model)}", remedy)]


_MEANINGS: dict[int, tuple[str, str]] = {
    signal.SIGILL: ("this CPU ({cpu}) lacks instructions that IPEX was built for",
                    "run on another kind of node, " + EAGER),
    signal.SIGKILL: ("out of memory, most likely: it takes 0.9 GB", "raise the pod's memory limit"),
}


def launcher(plan: Plan, environment: Mapping[str, str], folder: Path) -> list[Problem]:
    """TorchServe's own dry run of the CPU launcher, which it makes before every worker: where that fails, it starts
    the worker without the launcher, and says so in one warning.

    Args:
        folder: that TorchServe will run in.
    """
    if not plan.launcher:
        return []
    kind = launcher_of(plan.torchserve_version)
    if kind is None:
        return [Problem("error", "the plan asks for the CPU launcher",
                        f"TorchServe {plan.torchserve_version} has none", "write the plan again: `tscpu config`")]
    if found := [problem for problem in (_python(environment), *_tools(environment)) if problem]:
        return found
    binding = _binding(plan, environment, folder)
    if any(problem.severity == "error" for problem in binding):
        return binding
    # split as TorchServe splits
    ran = run(["python", "-m", kind.module, *plan.launcher_args.split(" "), "--no_python", "hostname"],
              environment, folder, LAUNCHER_SECONDS)
    if ran.code == 0:
        return binding
    then = "TorchServe would wait for ever" if ran.code is None else "TorchServe would start workers without it"
    return [*binding, Problem(
        "error", f"the CPU launcher's dry run fails: {then}",
        f"python -m {kind.module} {plan.launcher_args} --no_python hostname: {ran.last_words}",
        f"mend what it says, {LAUNCHER_OFF}")]


def _python(environment: Mapping[str, str]) -> Problem | None:
    if which("python", environment):
        return None
    return Problem("error", "there is no `python` for the CPU launcher: no worker could start",
                   f"TorchServe runs a bare `python`, and PATH is {environment.get('PATH', '')}",
                   f"use a virtual environment, or link python to python3, {LAUNCHER_OFF}")


def _tools(environment: Mapping[str, str]) -> list[Problem]:
    return [Problem("error", f"there is no `{name}`: TorchServe would start workers without the CPU launcher", why,
                    f"apt-get install {package}, {LAUNCHER_OFF}")
            for name, why, package in (("hostname", "its dry run runs hostname", "hostname"),
                                       ("lscpu", "it reads the machine through lscpu", "util-linux"))
            if not which(name, environment)]


def _binding(plan: Plan, environment: Mapping[str, str], folder: Path) -> list[Problem]:
    """What the launcher binds with: numactl if this works, else taskset, which pins CPUs and leaves memory alone."""
    numactl = which("numactl", environment)
    refusal = "there is no numactl"
    if numactl is not None:
        ran = run([numactl, "-C", "0", "-m", "0", "hostname"], environment, folder, QUICK_SECONDS)
        if ran.code == 0:
            return []
        refusal = f"numactl is refused, as the default seccomp profile does: {ran.last_words}"
        if 0 not in plan.pod.allowed_cpus:
            refusal = f"the launcher tries numactl on CPU 0, and this pod has {format_cpus(plan.pod.allowed_cpus)}"
    if which("taskset", environment) is None:
        return [Problem("error", "the CPU launcher has nothing to pin with: TorchServe would start workers without it",
                        f"{refusal}; and there is no taskset", f"apt-get install util-linux, {LAUNCHER_OFF}")]
    if plan.pod.nodes < 2:  # all memory is equally near
        return []
    return [Problem("warning", "the CPU launcher will not bind memory to NUMA nodes", f"{refusal}; it falls back to "
                    "taskset, which pins to the same CPUs",
                    "none is needed: a pinned worker's memory is near from its first use on")]


def which(name: str, environment: Mapping[str, str]) -> str | None:
    """A program on an environment's PATH."""
    return shutil.which(name, path=environment.get("PATH", os.defpath))


def major_minor(version: str) -> str:
    """Such as 2.8 of 2.8.0+cpu."""
    return ".".join(version.split(".")[:2])
