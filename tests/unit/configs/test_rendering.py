"""What `configs.rendering` promises: files that both of TorchServe's readers understand, and a clean environment."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_up import limits, model, plan, plan_of, topology
from ts.model_server import load_properties

from configs.errors import SettingsError
from configs.lint import lint
from configs.plan import Plan, read_plan
from configs.planning import thread_budget
from configs.rendering import Rendered, environment, render, vmargs
from configs.settings import Ports, Settings
from configs.torchserve import BOOLEAN_KEYS, INTEGER_KEYS, KEYS

PYTHON = Path("/opt/venv/bin/python")


def java(text: str) -> dict[str, str]:
    """What Java's Properties reads from lines without escapes and continuations, and such are all of ours."""
    found = {}
    for line in text.splitlines():
        assert "\\" not in line
        if line.strip() and line.lstrip()[0] not in "#!":
            match = re.match(r"[ \t\f]*([^=:\s]*)[ \t\f]*[=:]?[ \t\f]*(.*)", line)
            assert match is not None
            found[match[1]] = match[2]
    return found


def rendered(folder: Path, decided: Plan | None = None, **settings: Any) -> tuple[Rendered, dict[str, str]]:
    """The files of a plan, and the keys of its config.properties."""
    files = render(decided or plan(), Settings(**settings), folder / "store", folder / "run")
    return files, java(files.config.read_text())


PLANS = {
    "one": plan, "two": lambda: plan(names="ab"), "turns": lambda: plan(topology(cores=1), names="abc"),
    "quota": lambda: plan_of("xeon-4214-quota-8-v2", "ab"), "launcher-off": lambda: plan(launcher="off"),
    "ipex": lambda: plan(archives=[model(runtime="ipex", batch_size=8)], slo={"p99_ms": 120}),
    "old": lambda: plan(version="0.6.0")}


@pytest.fixture(params=sorted(PLANS))
def any_plan(request: pytest.FixtureRequest) -> Plan:
    decided: Plan = PLANS[request.param]()
    return decided


# --- config.properties -------------------------------------------------------------------------------------------

def test_p12_lines_are_keys_and_values_or_comments(tmp_path: Path, any_plan: Plan) -> None:
    files, _ = rendered(tmp_path, any_plan)
    text = files.config.read_text()
    assert text.isascii() and text.endswith("\n")
    for line in text.splitlines():
        assert line == line.strip()
        assert not line or line.startswith("# ") or re.fullmatch(r"[a-z_]+=\S.*", line)
        if line and not line.startswith("#"):
            value = line.partition("=")[2]
            assert value == value.strip() and value[0] not in "\"'"
            assert not line.endswith("\\")


def test_p12_both_parsers_agree(tmp_path: Path, any_plan: Plan) -> None:
    files, found = rendered(tmp_path, any_plan)
    assert load_properties(str(files.config)) == found


def test_p12_every_key_is_known_once_and_of_its_type(tmp_path: Path, any_plan: Plan) -> None:
    files, found = rendered(tmp_path, any_plan)
    assert set(found) - KEYS == set()
    lines = [line for line in files.config.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(found)
    assert all(value in ("true", "false") for key, value in found.items() if key in BOOLEAN_KEYS)
    assert all(re.fullmatch("[0-9]+", value) for key, value in found.items() if key in INTEGER_KEYS)


def test_every_key_has_its_reason_above_it(tmp_path: Path, any_plan: Plan) -> None:
    files, _ = rendered(tmp_path, any_plan)
    lines = files.config.read_text().splitlines()
    assert [line for above, line in pairwise(lines)
            if line and not line.startswith("#") and not above.startswith("# ")] == []


@pytest.mark.parametrize("bind", ["0.0.0.0", "127.0.0.1"])
def test_the_generated_file_lints_clean(tmp_path: Path, any_plan: Plan, bind: str) -> None:
    files, _ = rendered(tmp_path, any_plan, bind=bind)
    archives = [(each.name, each.version) for each in any_plan.models]
    budget = max(any_plan.budget, len(any_plan.models))
    findings = lint(files.config.read_text(), files.config, budget, archives)
    notes = [] if bind == "0.0.0.0" else ["inference_address", "metrics_address"]
    assert [(finding.key, finding.severity) for finding in findings] == [(key, "note") for key in notes]


def test_absolute_paths_whatever_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = render(plan(), Settings(), Path("store"), Path("run"))
    found = java(files.config.read_text())
    assert found["model_store"] == str(tmp_path / "store")
    assert found["metrics_config"] == str(tmp_path / "run" / "metrics.yaml")


def test_models_name_the_versions_of_their_archives(tmp_path: Path) -> None:
    decided = plan(archives=[model("a", version="2.0", batch_size=4, max_batch_delay_ms=7), model("b")])
    _, found = rendered(tmp_path, decided)
    models = json.loads(found["models"])
    assert {name: list(versions) for name, versions in models.items()} == {"a": ["2.0"], "b": ["1.0"]}
    assert models["a"]["2.0"] == {
        "marName": "a.mar", "minWorkers": 2, "maxWorkers": 2, "batchSize": 4, "maxBatchDelay": 7,
        "responseTimeout": 20, "startupTimeout": 80}
    assert found["load_models"] == "a.mar,b.mar"


def test_p1_no_worker_comes_from_the_cpus_of_the_node(tmp_path: Path, any_plan: Plan) -> None:
    _, found = rendered(tmp_path, any_plan)
    assert found["default_workers_per_model"] == "1"
    assert found["number_of_gpu"] == "0"


def test_p5_the_jvm_is_told_what_to_count(any_plan: Plan) -> None:
    flags = vmargs(any_plan)
    assert flags[0] == f"-XX:ActiveProcessorCount={any_plan.jvm_cpus}"
    assert f"-Xmx{any_plan.jvm_heap_mb}m" in flags


@pytest.mark.parametrize(("cpus", "parallelism"), [(1, 2), (2, 2), (3, 3), (24, 24)])
def test_the_common_pool_has_two_threads_at_least(cpus: int, parallelism: int) -> None:
    """With one, every batch would start a thread of its own."""
    assert f"-Djava.util.concurrent.ForkJoinPool.common.parallelism={parallelism}" in vmargs(plan(topology(cores=cpus)))


def test_p9_the_launcher_gets_arguments_only_where_it_is_on(tmp_path: Path, any_plan: Plan) -> None:
    _, found = rendered(tmp_path, any_plan)
    assert found["cpu_launcher_enable"] == str(any_plan.launcher).lower()
    assert found.get("cpu_launcher_args", "") == any_plan.launcher_args


def test_p14_no_snapshot_is_asked_for(tmp_path: Path, any_plan: Plan) -> None:
    assert "model_snapshot" not in rendered(tmp_path, any_plan)[1]


def test_p15_min_workers_are_max_workers(tmp_path: Path, any_plan: Plan) -> None:
    models = json.loads(rendered(tmp_path, any_plan)[1]["models"])
    for planned in any_plan.models:
        entry = models[planned.name][planned.version]
        assert entry["minWorkers"] == entry["maxWorkers"] == planned.workers


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_p16_management_stays_on_loopback(tmp_path: Path, bind: str) -> None:
    _, found = rendered(tmp_path, bind=bind, ports=Ports(inference=9080, management=9081, metrics=9082))
    assert found["inference_address"] == f"http://{bind}:9080"
    assert found["management_address"] == "http://127.0.0.1:9081"
    assert found["metrics_address"] == f"http://{bind}:9082"
    assert found["enable_model_api"] == "false"


@pytest.mark.parametrize(("tokens", "disabled"), [(False, "true"), (True, "false")])
def test_p17_tokens_are_explicit(tmp_path: Path, tokens: bool, disabled: str) -> None:
    assert rendered(tmp_path, token_authorization=tokens)[1]["disable_token_authorization"] == disabled


def test_p18_metrics_are_served(tmp_path: Path) -> None:
    files, found = rendered(tmp_path)
    assert (found["metrics_mode"], found["disable_system_metrics"]) == ("prometheus", "true")
    declared = yaml.safe_load(files.metrics.read_text())
    assert declared["model_metrics"]["counter"] and declared["ts_metrics"]["gauge"]


def test_p28_sizes_are_in_bytes(tmp_path: Path) -> None:
    assert rendered(tmp_path, max_request_mb=32)[1]["max_request_size"] == str(32 * 1024 * 1024)


def test_p32_no_pip_at_a_pods_start(tmp_path: Path) -> None:
    assert rendered(tmp_path)[1]["install_py_dep_per_model"] == "false"


@pytest.mark.parametrize("version", ["0.6.0", "0.11.1"])
def test_an_old_version_has_time_to_load(tmp_path: Path, version: str) -> None:
    """Before 0.12.0 the response timeout bounds loading, and a worker that is killed while it loads never serves."""
    decided = plan(version=version)
    _, found = rendered(tmp_path, decided)
    entry, = json.loads(found["models"])[decided.models[0].name].values()
    assert decided.models[0].response_timeout_s < decided.models[0].startup_timeout_s == entry["responseTimeout"]
    assert found["default_response_timeout"] == str(entry["responseTimeout"])


def test_defaults_for_later_models_are_the_longest_timeouts(tmp_path: Path) -> None:
    decided = plan(archives=[model("a", inference_ms=1000, load_seconds=5), model("b", load_seconds=50)])
    _, found = rendered(tmp_path, decided)
    assert (found["default_response_timeout"], found["default_startup_timeout"]) == ("50", "200")


# --- files -------------------------------------------------------------------------------------------------------

def test_the_plan_beside_it_is_the_plan(tmp_path: Path, any_plan: Plan) -> None:
    files, _ = rendered(tmp_path, any_plan)
    assert files.plan == tmp_path / "run" / "plan.json"
    assert read_plan(files.plan) == any_plan


def test_the_same_input_gives_the_same_files(tmp_path: Path) -> None:
    def contents() -> dict[str, str]:
        return {path.name: path.read_text() for path in (tmp_path / "run").iterdir() if path.is_file()}

    rendered(tmp_path)
    first = contents()
    rendered(tmp_path)
    assert contents() == first
    assert sorted(first) == ["config.properties", "log4j2.xml", "metrics.yaml", "plan.json"]


def test_files_are_replaced_as_wholes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a file open goes on reading the old one, and a failure leaves it as it was."""
    files, _ = rendered(tmp_path)
    before = files.config.read_text()
    with files.config.open() as reader:
        rendered(tmp_path, plan(names="ab"))
        assert reader.read() == before
    after = files.config.read_text()
    assert after != before

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", str(files.config))

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SettingsError, match="cannot write the configuration") as caught:
        rendered(tmp_path)
    assert caught.value.why == "No space left on device"
    assert files.config.read_text() == after


@pytest.mark.parametrize("name", ["with blank", "tab\there", "back\\slash", "a=b", "a:b", "a#b", "a!b", "a,b",
                                  "caf\xe9", "$$HOME$$", "quo'te", 'quo"te', "a\nb"])
def test_p12_paths_that_the_parsers_read_differently_are_refused(tmp_path: Path, name: str) -> None:
    for store, run in ((tmp_path / name, tmp_path / "run"), (tmp_path / "store", tmp_path / name)):
        with pytest.raises(SettingsError, match="TorchServe cannot take this path") as caught:
            render(plan(), Settings(), store, run)
        assert caught.value.where == str(tmp_path / name)
        assert not run.exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot write the configuration") as caught:
        render(plan(), Settings(), tmp_path, tmp_path / "file" / "run")
    assert caught.value.where.startswith(str(tmp_path / "file"))


def test_tmp_is_within_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("configs.rendering._LONGEST_TMP", 1000)
    files, _ = rendered(tmp_path)
    assert files.tmp == tmp_path / "run" / "tmp"
    assert files.tmp.is_dir()
    assert files.tmp.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("long_tmpdir", [False, True])
def test_a_long_run_folder_gets_a_short_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_tmpdir: bool) -> None:
    """A Unix socket's address holds 107 bytes."""
    place = tmp_path / ("t" * 90) if long_tmpdir else Path("/tmp")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(place))
    run = tmp_path / ("r" * 90)
    first = render(plan(), Settings(), tmp_path, run)
    second = render(plan(), Settings(), tmp_path, run)
    other = render(plan(), Settings(), tmp_path, tmp_path / ("s" * 90))
    try:
        assert first.tmp == second.tmp != other.tmp
        assert first.tmp.parent == Path("/tmp") and first.tmp.is_dir()
        assert len(f"{first.tmp}/.ts.sock.65534") < 107
    finally:
        first.tmp.rmdir()
        other.tmp.rmdir()


def test_a_tmp_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(SettingsError, match="belongs to somebody else"):
        rendered(tmp_path)


@pytest.mark.parametrize(("access", "level"), [(False, "off"), (True, "info")])
def test_p19_one_switch_for_access_lines_and_the_console_only(tmp_path: Path, access: bool, level: str) -> None:
    files, _ = rendered(tmp_path, access_log=access)
    root = ElementTree.parse(files.log4j2).getroot()
    levels = {logger.get("name"): logger.get("level") for logger in root.iter("Logger")}
    assert levels == {"org.pytorch.serve": "warn", "MODEL_LOG": "info", "ACCESS_LOG": level, "TS_METRICS": "off",
                      "MODEL_METRICS": "off"}
    appenders = root.find("Appenders")
    assert appenders is not None
    assert [appender.tag for appender in appenders] == ["Console"]


# --- environment -------------------------------------------------------------------------------------------------

def variables(folder: Path, inherited: Mapping[str, str],
              decided: Plan | None = None) -> tuple[dict[str, str], list[str]]:
    decided = decided or plan()
    files, _ = rendered(folder, decided)
    return environment(decided, files, inherited, PYTHON)


def test_p2_thread_variables_are_the_plans_whatever_the_image_says(tmp_path: Path) -> None:
    inherited = {"OMP_NUM_THREADS": "24", "MKL_NUM_THREADS": "4", "HOME": "/root"}
    found, notes = variables(tmp_path, inherited, plan(slo={"p99_ms": 120}))
    assert [found[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")] == ["2", "2", "2"]
    assert notes == ["environment: OMP_NUM_THREADS=24 gives way to the plan's 2",
                     "environment: MKL_NUM_THREADS=4 gives way to the plan's 2"]
    assert found["HOME"] == "/root"
    assert inherited == {"OMP_NUM_THREADS": "24", "MKL_NUM_THREADS": "4", "HOME": "/root"}


def test_p2_the_same_value_is_nothing_to_tell(tmp_path: Path) -> None:
    assert variables(tmp_path, {"OMP_NUM_THREADS": "1"})[1] == []


@pytest.mark.parametrize("name", ["GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "OMP_PLACES", "OMP_PROC_BIND",
                                  "OMP_THREAD_LIMIT", "OMP_DYNAMIC"])
def test_p2_what_binds_threads_is_removed(tmp_path: Path, name: str) -> None:
    found, notes = variables(tmp_path, {name: "0-3"})
    assert name not in found
    assert notes == [f"environment: {name}=0-3 is removed: the plan places workers and counts their threads"]


def test_p13_another_config_file_is_removed(tmp_path: Path) -> None:
    found, notes = variables(tmp_path, {"TS_CONFIG_FILE": "/etc/other"})
    assert "TS_CONFIG_FILE" not in found
    assert notes == ["environment: TS_CONFIG_FILE=/etc/other is removed: TorchServe would read that file instead of "
                     "the one just written"]


def test_p13_variables_without_effect_are_named(tmp_path: Path) -> None:
    found, notes = variables(tmp_path, {"TS_JOB_QUEUE_SIZE": "5", "TS_NUMBER_OF_GPU": "1", "TS_OTHER": "1",
                                        "TS_OPEN_INFERENCE_PROTOCOL": "oip"})
    assert [note.split(" ")[1] for note in notes] == ["TS_JOB_QUEUE_SIZE=5", "TS_NUMBER_OF_GPU=1"]
    assert all("is ignored" in note for note in notes)
    assert found["TS_OPEN_INFERENCE_PROTOCOL"] == "oip"
    assert "enable_envvars_config" not in rendered(tmp_path)[1]


@pytest.mark.parametrize("name", ["TS_MODEL_SERVER_HOME", "CUDA_VISIBLE_DEVICES", "LD_BIND_NOW"])
def test_what_would_change_torchserve_is_removed_with_its_reason(tmp_path: Path, name: str) -> None:
    found, notes = variables(tmp_path, {name: "1"})
    assert name not in found
    assert len(notes) == 1 and notes[0].startswith(f"environment: {name}=1 is removed: ") and "the plan" not in notes[0]


@pytest.mark.parametrize(("inherited", "path"), [
    ({"PATH": "/usr/bin:/bin"}, "/opt/venv/bin:/usr/bin:/bin"), ({}, f"/opt/venv/bin:{os.defpath}")])
def test_p8_the_bare_python_on_path_is_ours(tmp_path: Path, inherited: dict[str, str], path: str) -> None:
    """TorchServe tries its launcher with whatever `python` is."""
    found, notes = variables(tmp_path, inherited)
    assert found["PATH"] == path
    assert notes == []


def test_p6_waiting_threads_do_not_spin_under_a_quota(tmp_path: Path) -> None:
    machine = topology(cores=8)
    found, notes = variables(tmp_path, {"OMP_WAIT_POLICY": "ACTIVE", "KMP_BLOCKTIME": "200"},
                             plan(machine, limits(machine, cpus=2.0)))
    assert [found[name] for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")] == ["PASSIVE", "0", "0"]
    assert [note.split(" ")[1] for note in notes] == ["OMP_WAIT_POLICY=ACTIVE", "KMP_BLOCKTIME=200"]


def test_p6_threads_may_spin_on_cores_of_their_own(tmp_path: Path) -> None:
    found, notes = variables(tmp_path, {"OMP_WAIT_POLICY": "ACTIVE"})
    assert (found["OMP_WAIT_POLICY"], notes) == ("ACTIVE", [])
    assert "KMP_BLOCKTIME" not in found and "GOMP_SPINCOUNT" not in found


def test_workers_find_plan_logs_and_tmp(tmp_path: Path) -> None:
    files, _ = rendered(tmp_path)
    found, _ = variables(tmp_path, {"TMPDIR": "/elsewhere", "TEMP": "/elsewhere"})
    assert found["TSCPU_PLAN"] == str(files.plan)
    assert found["TMPDIR"] == found["TEMP"] == str(files.tmp)
    assert found["LOG_LOCATION"] == found["METRICS_LOCATION"] == str(tmp_path / "run" / "logs")


def test_the_narrowest_model_counts_for_libraries_that_start_early(tmp_path: Path) -> None:
    decided = plan(topology(cores=8), names="ab", models={"a": {"threads": 4}, "b": {"threads": 2}})
    assert variables(tmp_path, {}, decided)[0]["OMP_NUM_THREADS"] == "2"


def test_budget_of_the_lint_is_the_budget_of_the_plan() -> None:
    machine = topology(sockets=2, cores=4, smt=2)
    for cpus in (None, 0.5, 3.7, 100.0):
        bounds = limits(machine, cpus=cpus)
        assert thread_budget(machine, bounds) == plan(machine, bounds).budget
