"""What `configs.lint` promises: the mistakes in a config.properties, by line, each with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.findings import Finding, nearest
from configs.lint import lint
from configs.torchserve import KEYS

# A file with nothing to find.
CLEAN = (Path(__file__).parents[2] / "fixtures" / "clean.properties").read_text()
TWO = 'models={"a":{"1.0":{"minWorkers":2,"maxWorkers":2}},"b":{"1.0":{"minWorkers":1,"maxWorkers":1}}}'
ONE = 'models={"a":{"1.0":{"minWorkers":2,"maxWorkers":2}}}'


def found(text: str, **known: Any) -> list[Finding]:
    return lint(text, Path("/etc/ts/config.properties"), **known)


def only(lines: str, **known: Any) -> Finding:
    """The one thing wrong with these lines, behind a clean file (whose keys they replace)."""
    keys = [line.partition("=")[0].strip() for line in lines.splitlines()]
    rest = "".join(line + "\n" for line in CLEAN.splitlines() if line.partition("=")[0] not in keys)
    findings = found(rest + lines, **known)
    assert len(findings) == 1, findings
    assert findings[0].message and findings[0].remedy
    return findings[0]


def nothing(lines: str, **known: Any) -> None:
    """These lines add nothing to a clean file's findings."""
    keys = [line.partition("=")[0].strip() for line in lines.splitlines()]
    rest = "".join(line + "\n" for line in CLEAN.splitlines() if line.partition("=")[0] not in keys)
    assert found(rest + lines, **known) == []


def test_nothing_to_find() -> None:
    assert found(CLEAN) == []
    spaced = "# a comment\n! another\n\n" + CLEAN.replace("=", " = ") + ONE
    assert found(spaced, budget=2, archives=[("a", "1.0")]) == []


def test_findings_come_by_line() -> None:
    findings = found("ipex_enable=yes\n\n# why not\nipex_enable=on\nnumber_of_gpus=0\n" + CLEAN)
    assert [(finding.line, finding.key) for finding in findings] == [
        (4, "ipex_enable"), (4, "ipex_enable"), (5, "number_of_gpus")]


# --- P12: lines --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("line", "remedy"), [
    ('model_store="/models"', "model_store=/models"), ("model_store='/models'", "model_store=/models"),
    ('ipex_enable="true"', "ipex_enable=true"), ('vmargs="-Xmx1g -Xms1g"', "vmargs=-Xmx1g -Xms1g")])
def test_p12_quotes_belong_to_the_value(line: str, remedy: str) -> None:
    finding = only(line)
    assert (finding.severity, finding.remedy) == ("error", remedy)
    assert "the quotes belong to the value" in finding.message


@pytest.mark.parametrize("line", ["ipex_enable=true ", "job_queue_size=100\t", "model_store=/models  "])
def test_p12_blanks_at_the_end_belong_to_the_value(line: str) -> None:
    finding = only(line)
    assert finding.severity == "error"
    assert "blanks at the end belong to the value" in finding.message


@pytest.mark.parametrize(("line", "severity", "remedy"), [
    ("model_store: /models", "error", "model_store=/models"), ("model_store /models", "error", "model_store=/models"),
    ("vmargs: -Xmx1g", "error", "vmargs=-Xmx1g"), ("ipex_enable: true", "warning", "ipex_enable=true"),
    ("ipex_enable\ttrue", "warning", "ipex_enable=true"), ("ipex_enable", "error", "ipex_enable=VALUE, or")])
def test_p12_other_separators(line: str, severity: str, remedy: str) -> None:
    finding = only(line)
    assert finding.severity == severity
    assert finding.remedy.startswith(remedy)


@pytest.mark.parametrize("key", ["model_store", "vmargs", "plugins_path"])
def test_p12_keys_that_python_reads_stay_on_one_line(key: str) -> None:
    finding = only(f"{key}=/a\\\n  /b\n")
    assert (finding.line, finding.severity) == (len(CLEAN.splitlines()) + 1, "error")
    assert finding.remedy == "put it on one line"


def test_p12_other_keys_may_go_on_over_lines_and_are_found_where_they_are() -> None:
    text = 'models={"a":{"1.0":{\\\n  "minWorkers":1,\\\n  "maxWorkers":1,\\\n  "batchsize":8}}}\n'
    nothing(text.replace("batchsize", "batchSize"))
    finding = only(text)
    assert finding.line == len(CLEAN.splitlines()) + 4
    assert finding.remedy == "batchSize perhaps?"


@pytest.mark.parametrize("line", ["number_of_netty_threads=4 # four", "ipex_enable=true ! yes", "load_models=all # a"])
def test_p12_no_comment_behind_a_value(line: str) -> None:
    assert "no comment can stand behind a value" in only(line).message


def test_p12_letters_beyond_ascii_and_backslashes() -> None:
    assert only("load_models=caf\xe9.mar").severity == "warning"
    assert only("model_store=/mod\\\\els").severity == "error"


@pytest.mark.parametrize(("line", "remedy"), [
    ("number_of_gpus=0", "number_of_gpu perhaps?"), ("Ipex_Enable=true", "ipex_enable perhaps?"),
    ("cpu_launcher_arg=x", "cpu_launcher_args perhaps?"), ("inference_adress=http://0.0.0.0:8080", "inference_address"),
    ("default_worker_per_model=1", "default_workers_per_model perhaps?")])
def test_p12_unknown_keys_with_the_nearest_known_one(line: str, remedy: str) -> None:
    finding = only(line)
    assert (finding.severity, finding.key) == ("error", line.partition("=")[0])
    assert finding.remedy.startswith(remedy)


def test_p12_a_key_that_is_like_none_may_be_a_plugins() -> None:
    assert only("company_plugin_url=http://x").severity == "warning"


@pytest.mark.parametrize("key", sorted(KEYS))
def test_no_known_key_is_unknown(key: str) -> None:
    assert not any("no key of TorchServe" in finding.message for finding in found(f"{key}=1"))
    assert nearest(key.upper(), KEYS) == key


@pytest.mark.parametrize(("second", "severity"), [("job_queue_size=5", "error"), ("job_queue_size=100", "warning")])
def test_p12_duplicates(second: str, severity: str) -> None:
    finding = only(f"job_queue_size=100\n{second}")
    assert (finding.severity, finding.line) == (severity, len(CLEAN.splitlines()) + 2)
    assert f"is given before, in line {len(CLEAN.splitlines()) + 1}" in finding.message


@pytest.mark.parametrize(("line", "remedy"), [
    ("minWorkers=4", '"minWorkers":4'), ("min_workers=4", '"minWorkers":4'), ("batchSize=8", '"batchSize":8'),
    ("batch_size=8", '"batchSize":8'), ("maxBatchDelay=5", '"maxBatchDelay":5'),
    ("response_timeout=5", '"responseTimeout":5')])
def test_p12_keys_of_a_model_belong_into_models(line: str, remedy: str) -> None:
    finding = only(line)
    assert finding.severity == "error"
    assert finding.remedy.startswith("models={") and remedy in finding.remedy


@pytest.mark.parametrize(("line", "remedy"), [
    ("jobQueueSize=8", "job_queue_size"), ("maxRetryTimeoutInSec=8", "build the archive with it")])
def test_p12_keys_of_an_archive(line: str, remedy: str) -> None:
    finding = only(line)
    assert "model-config.yaml" in finding.message and finding.remedy.startswith(remedy)


@pytest.mark.parametrize(("line", "remedy"), [
    ("TS_JOB_QUEUE_SIZE=5", "job_queue_size=5"), ("TS_IPEX_ENABLE=true", "ipex_enable=true"),
    ("TS_TOKEN_EXPIRATION_TIME_MIN=5", "token_expiration_min=5")])
def test_p13_names_of_environment_variables_are_no_keys(line: str, remedy: str) -> None:
    finding = only(line)
    assert (finding.severity, finding.remedy) == ("error", remedy)


# --- P12: values -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("line", "severity"), [
    ("ipex_enable=yes", "error"), ("ipex_enable=1", "error"), ("ipex_enable=on", "error"),
    ("ipex_enable=True", "warning"), ("decode_input_request=FALSE", "warning")])
def test_p12_booleans(line: str, severity: str) -> None:
    assert only(line).severity == severity


@pytest.mark.parametrize("line", [
    "job_queue_size=1 00", "job_queue_size=1_000", "job_queue_size=ten", "max_request_size=16MB", "job_queue_size=1.5",
    "max_request_size=5000000000", "job_queue_size="])
def test_p12_whole_numbers(line: str) -> None:
    finding = only(line)
    assert finding.severity == "error"
    assert "no whole number" in finding.message


def test_values_from_the_environment_are_not_judged() -> None:
    nothing("job_queue_size=$$SIZE$$\nipex_enable=$$IPEX$$\nmodels=$$MODELS$$\ninference_address=$$WHERE$$\n"
            "metrics_mode=$$MODE$$")


def test_p12_relative_paths_count_from_elsewhere() -> None:
    finding = only("model_store=models")
    assert finding.severity == "warning"
    assert finding.remedy == "model_store=/etc/ts/models, if it is meant from this file"


# --- models ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value", ["{", "{'a':{}}", '{"a":{"1.0":{"minWorkers":1,}}}', '"a"x', "a"])
def test_models_is_json(value: str) -> None:
    finding = only(f"models={value}")
    assert finding.severity == "error"
    assert "is no JSON" in finding.message


@pytest.mark.parametrize("value", ["[]", "3", '{"a":3}', '{"a":{"1.0":3}}'])
def test_models_has_versions(value: str) -> None:
    assert any("has no versions with keys in them" in finding.message for finding in found(CLEAN + f"models={value}"))


@pytest.mark.parametrize(("archives", "message", "remedy"), [
    ([("b", "1.0")], "no archive holds a model 'a'", "there are b"),
    ([], "no archive holds a model 'a'", "there are none"),
    ([("a", "2.0")], "the archive of a has version 2.0: what is said of 1.0 is ignored", '{"a":{"2.0":{')])
def test_p12_models_match_the_archives(archives: list[tuple[str, str]], message: str, remedy: str) -> None:
    finding = only(ONE, archives=archives)
    assert message in finding.message and finding.severity == "error"
    assert finding.remedy == remedy


def test_p12_the_nearest_archive() -> None:
    text = ONE.replace('"a"', '"food_recogniser"')
    assert only(text, archives=[("food_recognizer", "1.0")]).remedy == "food_recognizer perhaps?"
    nothing(ONE, archives=[("a", "2.0"), ("a", "1.0")])
    nothing(ONE)


@pytest.mark.parametrize(("pair", "message"), [
    ('"minWorker":1', "there is no key minWorker"), ('"max_batch_delay":5', "there is no key max_batch_delay"),
    ('"jobQueueSize":5', "jobQueueSize is ignored here"), ('"zzz":5', "there is no key zzz"),
    ('"maxBatchDelay":0', "TorchServe takes 100 ms"), ('"batchSize":"8"', "TorchServe takes 1"),
    ('"responseTimeout":1.5', "TorchServe takes 120 s"), ('"batchSize":true', "no whole number above zero")])
def test_keys_of_a_model(pair: str, message: str) -> None:
    finding = only(ONE.replace('"maxWorkers":2', f'"maxWorkers":2,{pair}'))
    assert message in finding.message and finding.severity == "error"


@pytest.mark.parametrize(("least", "most", "severity"), [(2, 4, "note"), (4, 2, "error")])
def test_p15_min_and_max_workers(least: int, most: int, severity: str) -> None:
    finding = only(f'models={{"a":{{"1.0":{{"minWorkers":{least},"maxWorkers":{most}}}}}}}')
    assert (finding.severity, finding.remedy) == (severity, "make them equal")


# --- workers -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("lines", "archives", "severity"), [
    ("default_workers_per_model=0", None, "warning"),
    ('default_workers_per_model=0\nmodels={"a":{"1.0":{"batchSize":2}}}', None, "warning"),
    (f"default_workers_per_model=0\n{ONE}", [("a", "1.0"), ("b", "1.0")], "warning")])
def test_p1_workers_are_explicit(lines: str, archives: list[tuple[str, str]] | None, severity: str) -> None:
    finding = only(lines, archives=archives)
    assert (finding.key, finding.severity) == ("default_workers_per_model", severity)
    assert "a worker for each CPU that it counts" in finding.message


def test_p1_a_missing_default_does_not_matter_where_all_models_say() -> None:
    text = CLEAN.replace("default_workers_per_model=1\n", "") + ONE
    assert found(text, archives=[("a", "1.0")]) == []
    assert [finding.key for finding in found(CLEAN.replace("default_workers_per_model=1\n", ""))] == [
        "default_workers_per_model"]


@pytest.mark.parametrize(("lines", "budget", "archives", "message"), [
    (TWO, 2, None, "3 workers × 1 threads are 3"), (ONE, 1, [("a", "1.0")], "2 workers × 1 threads are 2"),
    (ONE, 2, [("a", "1.0"), ("b", "1.0")], "3 workers × 1 threads are 3"),
    ("default_workers_per_model=4", 7, [("a", "1"), ("b", "1")], "8 workers × 1 threads are 8"),
    (f"{ONE}\ncpu_launcher_enable=true\ncpu_launcher_args=--core-list 0,1,2,3 --ncores-per-instance 2", 3, None,
     "2 workers × 2 threads are 4"),
    (f"{ONE}\ncpu_launcher_enable=true\ncpu_launcher_args=--ncores_per_instance 4", 4, None,
     "2 workers × 4 threads are 8")])
def test_p2_workers_times_threads_within_the_budget(lines: str, budget: int, archives: list[tuple[str, str]] | None,
                                                    message: str) -> None:
    finding = only(lines, budget=budget, archives=archives)
    assert finding.severity == "error"
    assert message in finding.message and f"this pod has a budget of {budget}" in finding.message
    nothing(lines, budget=8, archives=archives)


# --- P9: the launcher --------------------------------------------------------------------------------------------

def launcher(arguments: str, models: str = ONE) -> str:
    return f"{models}\ncpu_launcher_enable=true\ncpu_launcher_args={arguments}"


@pytest.mark.parametrize("arguments", [
    "--core-list 0,1 --ncores-per-instance 1", "--core_list 0,1,2,3 --ncores_per_instance 2", "--core-list=0,1 "
    "--ncores-per-instance=1", "--cores-list 0-3 --ncores-per-instance 2", "--ncores-per-instance 2 --node-id 0"])
def test_p9_sound_arguments(arguments: str) -> None:
    nothing(launcher(arguments))


@pytest.mark.parametrize("own", ["--ninstances 2", "--rank 0", "--ninstance 2", "--instance_idx 0", "--rank=0"])
def test_p9_torchserves_own_arguments(own: str) -> None:
    finding = only(launcher(f"--core-list 0,1 --ncores-per-instance 1 {own}"))
    assert finding.severity == "error" and finding.remedy == "leave it out"
    assert own.split(" ")[0].split("=")[0].replace("_", "-") in finding.message


@pytest.mark.parametrize("cores", ["0-3", "0,1-3", "0, 1", "0,", "", "a", "0,,1"])
def test_p9_the_core_list_has_ids_and_commas_only(cores: str) -> None:
    finding = only(launcher(f"--core-list {cores} --ncores-per-instance 1".replace("  ", " ")))
    assert finding.severity == "error" and "workers start unpinned" in finding.message


@pytest.mark.parametrize(("arguments", "message"), [
    ("--core-list 0,1", "--core-list without --ncores-per-instance"),
    ("--core-list 0,1 --ncores-per-instance", "without --ncores-per-instance"),
    ("--core-list 0,1 --ncores-per-instance 2", "2 workers × 2 cores are 4, and the list has 2"),
    ("--core-list 0,1  --ncores-per-instance 1", "splits at each single blank"),
    ('--core-list "0,1" --ncores-per-instance 1', "knows no quotes")])
def test_p9_what_makes_the_launcher_fail(arguments: str, message: str) -> None:
    findings = [finding for finding in found(CLEAN + launcher(arguments)) if message in finding.message]
    assert [finding.severity for finding in findings] == ["error"]


def test_p9_one_worker_with_a_long_list_is_copied() -> None:
    one = 'models={"a":{"1.0":{"minWorkers":1,"maxWorkers":1}}}'
    finding = only(launcher("--core-list 0,1,2,3 --ncores-per-instance 2", one))
    assert "the launcher starts 2 copies of it" in finding.message
    nothing(launcher("--core-list 0,1 --ncores-per-instance 2", one))


def test_p11_two_models_and_the_launcher() -> None:
    finding = only(launcher("--ncores-per-instance 1", TWO))
    assert (finding.key, finding.severity) == ("cpu_launcher_enable", "error")
    assert "all models stand on the same cores" in finding.message


@pytest.mark.parametrize("lines", ["cpu_launcher_args=--ncores-per-instance 1",
                                   "cpu_launcher_enable=false\ncpu_launcher_args=--ncores-per-instance 1"])
def test_p9_arguments_without_the_launcher(lines: str) -> None:
    finding = only(f"{ONE}\n{lines}")
    assert (finding.severity, finding.remedy) == ("error", "cpu_launcher_enable=true")


def test_p9_the_launcher_without_arguments() -> None:
    assert "all cores of the node" in only(f"{ONE}\ncpu_launcher_enable=true").message


# --- P13 to P19: choices -----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("key", "value", "severity"), [
    ("number_of_gpu", None, "warning"), ("number_of_gpu", "1", "warning"), ("metrics_mode", None, "warning"),
    ("metrics_mode", "log", "warning"), ("metrics_mode", "prometeus", "error"),
    ("disable_token_authorization", None, "warning"), ("async_logging", "true", "warning"),
    ("enable_envvars_config", "true", "warning"), ("model_snapshot", "x", "warning")])
def test_p13_to_p18_choices(key: str, value: str | None, severity: str) -> None:
    rest = "".join(line + "\n" for line in CLEAN.splitlines() if not line.startswith(key))
    findings = found(rest + (f"{key}={value}" if value is not None else ""))
    assert [(finding.key, finding.severity) for finding in findings] == [(key, severity)]
    assert findings[0].line == (1 if value is None else len(rest.splitlines()) + 1)


@pytest.mark.parametrize("line", ["disable_token_authorization=false", "metrics_mode=legacy", "async_logging=false",
                                  "enable_envvars_config=false"])
def test_p17_p18_explicit_choices_are_fine(line: str) -> None:
    nothing(line)


@pytest.mark.parametrize(("tokens", "severity"), [("true", "error"), ("false", "warning")])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7"])
def test_p16_management_for_everybody(tokens: str, severity: str, host: str) -> None:
    finding = only(f"management_address=http://{host}:9081\ndisable_token_authorization={tokens}")
    assert (finding.severity, finding.remedy) == (severity, "management_address=http://127.0.0.1:9081")


@pytest.mark.parametrize(("line", "remedy"), [
    ("inference_address=http://127.0.0.1:9080", "inference_address=http://0.0.0.0:9080 in a container"),
    ("metrics_address=http://127.0.0.1:9082", "metrics_address=http://0.0.0.0:9082 for a scraper outside")])
def test_p16_inference_on_loopback_is_worth_knowing(line: str, remedy: str) -> None:
    finding = only(line)
    assert (finding.severity, finding.remedy) == ("note", remedy)


def test_p16_without_addresses_the_defaults_are_judged() -> None:
    text = "".join(line + "\n" for line in CLEAN.splitlines() if "address" not in line)
    assert [(finding.key, finding.severity, finding.line) for finding in found(text)] == [
        ("inference_address", "note", 1), ("metrics_address", "note", 1)]


@pytest.mark.parametrize("line", [
    "metrics_address=http://0.0.0.0:8080", "metrics_address=http://127.0.0.1:8080", "metrics_address=http://0.0.0.0:8081"])
def test_metrics_need_a_port_of_their_own(line: str) -> None:
    findings = [finding for finding in found(CLEAN.replace("metrics_address=http://0.0.0.0:8082", line))
                if finding.severity == "error"]
    assert len(findings) == 1 and "cannot bind it twice" in findings[0].message


def test_metrics_that_are_off_need_none() -> None:
    nothing("metrics_address=http://0.0.0.0:8080\nenable_metrics_api=false")


@pytest.mark.parametrize("value", ["0.0.0.0:8080", "http://[::]:8080", "http://0.0.0.0:eighty", "8080", ""])
def test_what_is_no_address(value: str) -> None:
    findings = found(CLEAN.replace("inference_address=http://0.0.0.0:8080", f"inference_address={value}"))
    assert "error" in [finding.severity for finding in findings if "is no address for TorchServe" in finding.message]


def test_a_unix_socket_is_an_address() -> None:
    nothing("management_address=unix:/tmp/management.sock")
