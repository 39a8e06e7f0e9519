"""serving/preflight_probes.py with real programs: shell scripts on a PATH of their own, and this interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from configs.plan import Plan
from serving import preflight_probes as probes
from serving.preflight_problem import Problem, run

MakePlan = Callable[..., Plan]

PYTHON = Path(sys.executable)
GOOD = "exit 0"
MODULE = "torch.backends.xeon.run_cpu"


class Place:
    """A PATH with nothing on it but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": str(folder)}

    def put(self, *names: str, script: str = GOOD) -> Path:
        for name in names:
            path = self.folder / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return self.folder / names[-1]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Place(folder)


@pytest.fixture
def plan(make_plan: MakePlan) -> Plan:
    """A plan with the launcher and IPEX, on a pod of one NUMA node."""
    made = make_plan({"food": [(0,), (1,)]})
    return replace(made, launcher=True, launcher_args="--core-list 0,1 --ncores-per-instance 1", ipex=True,
                   pod=replace(made.pod, nodes=1, cpu_model="A CPU of 2009"))


def only(found: list[Problem], severity: str = "error") -> Problem:
    [problem] = found
    assert problem.severity == severity and problem.why and problem.remedy, problem
    return problem


# --- how a probe ends


def test_a_probe_says_how_it_ended(place: Place, tmp_path: Path) -> None:
    path = place.put("a", script="echo out; for i in 1 2 3 4 5 6; do echo line $i >&2; done; exit 3")
    ran = run([path], place.environment, tmp_path, 5)
    assert (ran.code, ran.out) == (3, "out\n")
    assert ran.last_words == "exit code 3\nline 3\nline 4\nline 5\nline 6"
    assert run([place.put("b", script="kill -SEGV $$")], {}, tmp_path, 5).ended == "signal 11 (SIGSEGV)"
    assert run([place.put("c", script="echo only; exit 1")], {}, tmp_path, 5).last_words == "exit code 1\nonly"


def test_a_probe_that_hangs_is_ended(place: Place, tmp_path: Path) -> None:
    ran = run([place.put("a", script="echo before; exec /bin/sleep 60")], {}, tmp_path, 0.3)
    assert ran.code is None and ran.out == "before\n" and "in time" in ran.last_words


# --- torchserve and Java


def test_torchserve_has_to_be_there(tmp_path: Path) -> None:
    assert probes.torchserve(tmp_path) == []
    assert "no torchserve" in only(probes.torchserve(None)).what


@pytest.mark.parametrize("said", [
    'openjdk version "17.0.21.1" 2026-11-17', 'java version "11"', 'openjdk version "21-ea" 2023-09-19',
    'Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "11.0.2" 2019-01-15'])
def test_java_that_is_new_enough(place: Place, tmp_path: Path, said: str) -> None:
    place.put("java", script=f"printf '%s\\n' '{said}' >&2")
    assert probes.java(place.environment, tmp_path) == []


@pytest.mark.parametrize(("said", "number"), [('java version "1.8.0_392"', "8"), ('openjdk version "10.0.2"', "10")])
def test_java_that_is_too_old(place: Place, tmp_path: Path, said: str, number: str) -> None:
    place.put("java", script=f"echo '{said}' >&2")
    problem = only(probes.java(place.environment, tmp_path))
    assert "too old" in problem.what and f"Java {number};" in problem.why


def test_java_home_wins_over_path(place: Place, tmp_path: Path) -> None:
    """As torchserve does it."""
    place.put("java", script="echo 'java version \"17\"' >&2")
    assert probes.java(place.environment | {"JAVA_HOME": ""}, tmp_path) == []
    problem = only(probes.java(place.environment | {"JAVA_HOME": str(tmp_path / "jdk")}, tmp_path))
    assert f"{tmp_path}/jdk/bin/java" in problem.why and "JAVA_HOME" in problem.remedy


def test_no_java(place: Place, tmp_path: Path) -> None:
    assert only(probes.java(place.environment, tmp_path)).why == "no java on PATH"


def test_java_that_does_not_start(place: Place, tmp_path: Path) -> None:
    place.put("java", script="echo 'Could not reserve enough space' >&2; exit 1")
    assert "Could not reserve" in only(probes.java(place.environment, tmp_path)).why


def test_java_that_says_something_else_is_a_warning(place: Place, tmp_path: Path) -> None:
    place.put("java", script="echo 'a JVM of our own' >&2")
    assert "unknown" in only(probes.java(place.environment, tmp_path), "warning").what


# --- the CPU launcher


def good_tools(place: Place) -> None:
    place.put("hostname", "lscpu", "numactl", "taskset", "python")


def test_without_a_launcher_in_the_plan_nothing_is_run(place: Place, plan: Plan, tmp_path: Path) -> None:
    assert probes.launcher(replace(plan, launcher=False), place.environment, tmp_path) == []


def test_p8_the_launcher_probe_is_the_one_that_torchserve_runs(place: Place, plan: Plan, tmp_path: Path) -> None:
    good_tools(place)
    place.put("python", script=f'printf "%s|" "$@" > {tmp_path}/said; echo "$MARK" >> {tmp_path}/said')
    assert probes.launcher(plan, place.environment | {"MARK": "its environment"}, tmp_path) == []
    assert (tmp_path / "said").read_text() == (
        f"-m|{MODULE}|--core-list|0,1|--ncores-per-instance|1|--no_python|hostname|its environment\n")


@pytest.mark.parametrize(("version", "module"), [
    ("0.12.0", MODULE), ("0.6.1", "intel_extension_for_pytorch.cpu.launch")])
def test_the_module_is_the_versions_own(place: Place, plan: Plan, tmp_path: Path, version: str, module: str) -> None:
    good_tools(place)
    place.put("python", script="exit 1")
    assert module in only(probes.launcher(replace(plan, torchserve_version=version), place.environment, tmp_path)).why


def test_p8_a_failing_launcher_is_an_error_with_its_last_words(place: Place, plan: Plan, tmp_path: Path) -> None:
    good_tools(place)
    place.put("python", script="echo Traceback >&2; echo 'KeyError: 7' >&2; exit 1")
    problem = only(probes.launcher(plan, place.environment, tmp_path))
    assert "without it" in problem.what and "KeyError: 7" in problem.why and "exit code 1" in problem.why
    assert "launcher: off" in problem.remedy


def test_p8_no_bare_python(place: Place, plan: Plan, tmp_path: Path) -> None:
    good_tools(place)
    (place.folder / "python").rename(place.folder / "python3")
    problem = only(probes.launcher(plan, place.environment, tmp_path))
    assert "no `python`" in problem.what and str(place.folder) in problem.why


@pytest.mark.parametrize("tool", ["hostname", "lscpu"])
def test_p8_a_missing_tool_is_named(place: Place, plan: Plan, tmp_path: Path, tool: str) -> None:
    good_tools(place)
    (place.folder / tool).unlink()
    place.put("python", script="exit 9")  # not run any more
    problem = only(probes.launcher(plan, place.environment, tmp_path))
    assert f"no `{tool}`" in problem.what and "apt-get" in problem.remedy


def test_a_launcher_that_hangs_would_hang_torchserve(place: Place, plan: Plan, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    good_tools(place)
    place.put("python", script="exec /bin/sleep 60")
    monkeypatch.setattr(probes, "LAUNCHER_SECONDS", 0.3)
    assert "wait for ever" in only(probes.launcher(plan, place.environment, tmp_path)).what


REFUSED = "echo 'set_mempolicy: Operation not permitted' >&2; exit 1"


def test_p7_refused_memory_policy_falls_back_to_taskset(place: Place, plan: Plan, tmp_path: Path) -> None:
    good_tools(place)
    place.put("numactl", script=REFUSED)
    assert probes.launcher(plan, place.environment, tmp_path) == []  # one node: nothing is lost
    two = replace(plan, pod=replace(plan.pod, nodes=2))
    problem = only(probes.launcher(two, place.environment, tmp_path), "warning")
    assert "set_mempolicy" in problem.why and "taskset" in problem.why and "seccomp" in problem.why


def test_p7_a_cpuset_without_cpu_0_is_not_called_refused(place: Place, plan: Plan, tmp_path: Path) -> None:
    good_tools(place)
    place.put("numactl", script=REFUSED)
    elsewhere = replace(plan, pod=replace(plan.pod, nodes=2, allowed_cpus=(40, 41)))
    why = only(probes.launcher(elsewhere, place.environment, tmp_path), "warning").why
    assert "CPU 0" in why and "40-41" in why and "refused" not in why


@pytest.mark.parametrize("numactl", [None, REFUSED], ids=["missing", "refused"])
def test_p7_neither_numactl_nor_taskset(place: Place, plan: Plan, tmp_path: Path, numactl: str | None) -> None:
    good_tools(place)
    (place.folder / "taskset").unlink()
    (place.folder / "numactl").unlink()
    if numactl:
        place.put("numactl", script=numactl)
    problem = only(probes.launcher(plan, place.environment, tmp_path))
    assert "nothing to pin with" in problem.what and "no taskset" in problem.why


def test_a_version_without_a_launcher(place: Place, plan: Plan, tmp_path: Path) -> None:
    old = replace(plan, torchserve_version="0.5.3")
    assert "has none" in only(probes.launcher(old, place.environment, tmp_path)).why


# --- the workers' Python and IPEX


class Site:
    """Packages before the installed ones, as PYTHONPATH puts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(folder)}

    def metadata(self, name: str, version: str) -> None:
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    made = Site(folder)
    made.metadata("torch", "2.8.0+cpu")
    made.metadata("intel_extension_for_pytorch", "2.8.10")
    (folder / "torch.py").write_text("")
    return made


def check_ipex(plan: Plan, site: Site, tmp_path: Path) -> list[Problem]:
    found, wrong = probes.versions(PYTHON, site.environment, tmp_path)
    assert wrong == []
    return probes.ipex(plan, PYTHON, site.environment, found, tmp_path)


def importing(site: Site, code: str) -> None:
    (site.folder / "intel_extension_for_pytorch.py").write_text(f"import os, sys\n{code}\n")


def test_versions_come_from_the_workers_interpreter_without_an_import(site: Site, tmp_path: Path) -> None:
    (site.folder / "torch.py").write_text("raise SystemExit(9)")
    found, wrong = probes.versions(PYTHON, site.environment, tmp_path)
    asked = {"python": sys.version.split()[0], "torch": "2.8.0+cpu", probes.IPEX: "2.8.10"}
    assert wrong == [] and {name: found[name] for name in asked} == asked
    assert set(found) <= {*asked, "onnxruntime", "openvino"}


def test_an_interpreter_that_does_not_run(place: Place, tmp_path: Path) -> None:
    for python in (place.put("python", script="echo 'broken venv' >&2; exit 1"), tmp_path / "nowhere"):
        found, wrong = probes.versions(python, place.environment, tmp_path)
        assert found == {} and str(python) in only(wrong).what
    assert "No such file" in only(wrong).why


def test_an_interpreter_without_torch(place: Place, tmp_path: Path) -> None:
    python = place.put("python", script="echo '{\"python\": \"3.11.7\"}'")
    found, wrong = probes.versions(python, place.environment, tmp_path)
    assert found == {} and "no torch" in only(wrong).why


def test_ipex_that_imports(plan: Plan, site: Site, tmp_path: Path) -> None:
    importing(site, "print('warnings', file=sys.stderr)")
    assert check_ipex(plan, site, tmp_path) == []


def test_without_ipex_in_the_plan_nothing_is_imported(plan: Plan, site: Site, tmp_path: Path) -> None:
    importing(site, "os.kill(os.getpid(), 4)")
    assert check_ipex(replace(plan, ipex=False), site, tmp_path) == []


def test_p10_a_cpu_without_the_instructions(plan: Plan, site: Site, tmp_path: Path) -> None:
    importing(site, "os.kill(os.getpid(), 4)")
    problem = only(check_ipex(plan, site, tmp_path))
    assert "signal 4 (SIGILL)" in problem.why and "lacks instructions" in problem.why
    assert "A CPU of 2009" in problem.why and "--runtime eager" in problem.remedy


@pytest.mark.parametrize(("number", "words"), [(9, "out of memory"), (11, "crashed"), (6, "signal 6 (SIGABRT)")])
def test_p10_other_deaths_are_named(plan: Plan, site: Site, tmp_path: Path, number: int, words: str) -> None:
    importing(site, f"os.kill(os.getpid(), {number})")
    assert words in only(check_ipex(plan, site, tmp_path)).why


def test_p10_an_import_that_raises(plan: Plan, site: Site, tmp_path: Path) -> None:
    importing(site, "raise ImportError('libmkl.so.2: cannot open shared object file')")
    assert "libmkl.so.2" in only(check_ipex(plan, site, tmp_path)).why


def test_p10_an_import_that_takes_too_long(plan: Plan, site: Site, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    importing(site, "import time; time.sleep(60)")
    monkeypatch.setattr(probes, "IMPORT_SECONDS", 0.5)
    assert "longer than" in only(check_ipex(plan, site, tmp_path)).why


def test_p10_versions_that_do_not_fit_are_found_without_an_import(plan: Plan, site: Site, tmp_path: Path) -> None:
    importing(site, "os.kill(os.getpid(), 4)")
    (site.folder / "torch-2.8.0+cpu.dist-info").rename(site.folder / "other.dist-info")
    (site.folder / "other.dist-info" / "METADATA").unlink()
    (site.folder / "other.dist-info").rmdir()
    site.metadata("torch", "2.7.1")
    problem = only(check_ipex(plan, site, tmp_path))
    assert "2.8.10 does not work with torch 2.7.1" in problem.why and "==2.7.*" in problem.remedy


def test_p10_ipex_that_is_not_installed(plan: Plan, tmp_path: Path) -> None:
    problem = only(probes.ipex(plan, PYTHON, {}, {"python": "3.11.7", "torch": "2.8.0"}, tmp_path))
    assert "not installed" in problem.why and "==2.8.*" in problem.remedy
