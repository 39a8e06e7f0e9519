"""The mistakes that people make in a config.properties of their own, with line numbers and remedies.

TorchServe reads such a file twice, by two sets of rules, ignores what it does not know, and takes "true " for false:
nearly every mistake is silent. Lines, keys and addresses are looked at here; models, workers and the CPU launcher in
`lint_workers`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from configs.findings import Finding, Report, filled_in_later, nearest
from configs.lint_workers import check_launcher, check_models, check_workers
from configs.properties import Entry, entries
from configs.torchserve import BOOLEAN_KEYS, INTEGER_KEYS, KEYS, MODEL_KEYS, PYTHON_KEYS, YAML_KEYS, key_of_variable

ADDRESSES = {"inference_address": "http://127.0.0.1:8080", "management_address": "http://127.0.0.1:8081",
             "metrics_address": "http://127.0.0.1:8082"}
_PATHS = ("model_store", "metrics_config", "workflow_store", "keystore", "certificate_file", "private_key_file")
_LOOPBACK = ("127.0.0.1", "localhost")
_LARGEST = 2**31 - 1
_COMMENT = re.compile(r"[ \t][#!][ \t]")


def lint(text: str, path: Path, budget: int | None = None,
         archives: Sequence[tuple[str, str]] | None = None) -> list[Finding]:
    """Everything wrong with a config.properties, by line.

    Args:
        text: the file's content.
        path: where it is. Relative paths in it count from elsewhere, and are told so.
        budget: threads that this pod has for workers, if known.
        archives: name and version of each model in the model store, if known.
    """
    found = list(entries(text))
    report = Report({entry.key: entry for entry in found})
    for entry in found:
        _check_line(entry, report)
        _check_key(entry, report)
    _check_duplicates(found, report)
    for entry in report.keys.values():
        _check_value(entry, path, report)
    _check_addresses(report)
    _check_choices(report)
    models = check_models(report, archives)
    check_launcher(report, models)
    check_workers(report, models, budget, archives)
    return sorted(report.findings, key=lambda finding: finding.line)


def _check_line(entry: Entry, report: Report) -> None:
    """Where the two readers disagree, or Java takes more into the value than was meant."""
    key, value, plain = entry.key, entry.value, entry.value.strip()
    python = key in PYTHON_KEYS
    if not entry.separator:
        report.error(entry, f"{key!r} has no value", f"{key}=VALUE, or # in front of a comment")
    elif entry.separator != "=":
        between = "a colon" if entry.separator == ":" else "a blank"
        if python:
            report.error(entry, f"{between} behind {key!r}: TorchServe's Python part does not see it", f"{key}={plain}")
        else:
            report.warning(entry, f"{between} behind {key!r}: Java reads it, Python would not", f"{key}={plain}")
    if python and entry.continued:
        report.error(entry, f"{key} goes on over {len(entry.text)} lines: TorchServe's Python part reads one",
                     "put it on one line")
    if value != value.rstrip():
        report.error(entry, f"blanks at the end belong to the value: {value!r}",
                     "remove them" + (': "true " is false' if plain == "true" else ""))
    if re.fullmatch(r"\"[^\"]*\"|'[^']*'", plain):
        report.error(entry, f"the quotes belong to the value: {plain}", f"{key}={plain[1:-1]}")
    if _COMMENT.search(value) and key != "models":
        report.error(entry, f"no comment can stand behind a value: {value!r} is all of it", "give it a line of its own")
    if not all(line.isascii() for line in entry.text):
        report.warning(entry, "letters beyond ASCII: Java reads the file as ISO 8859-1", "write them as \\uXXXX")
    if python and "\\" in entry.text[0].removesuffix("\\"):
        report.error(entry, "Java takes backslashes for escapes, Python keeps them", "write the value without")


def _check_key(entry: Entry, report: Report) -> None:
    key, value = entry.key, entry.value.strip()
    camel = re.sub("_([a-z])", lambda letter: letter[1].upper(), key)
    if key in KEYS:
        return
    if meant := key_of_variable(key):
        report.error(entry, f"{key} is the name of an environment variable, and ignored here", f"{meant}={value}")
    elif camel in MODEL_KEYS:
        report.error(entry, f"{key} is ignored here: it belongs to a model",
                     f'models={{"MODEL":{{"VERSION":{{"{camel}":{value or 1}}}}}}}')
    elif camel in YAML_KEYS:
        report.error(entry, f"{key} is ignored here: it belongs into an archive's model-config.yaml",
                     "job_queue_size, for all models" if camel == "jobQueueSize" else "build the archive with it")
    elif meant := nearest(key, KEYS):
        report.error(entry, f"{key!r} is no key of TorchServe, and ignored", f"{meant} perhaps?")
    else:
        report.warning(entry, f"{key!r} is no key of TorchServe, and ignored unless a plugin reads it", "remove it")


def _check_duplicates(found: Sequence[Entry], report: Report) -> None:
    first: dict[str, Entry] = {}
    for entry in found:
        earlier = first.setdefault(entry.key, entry)
        if earlier is entry:
            continue
        if earlier.value == entry.value:
            report.warning(entry, f"{entry.key} is given before, in line {earlier.line}", "keep one of them")
        else:
            report.error(entry, f"{entry.key} is given before, in line {earlier.line}, as {earlier.value!r}: "
                         "the last one counts", "keep one of them")


def _check_value(entry: Entry, path: Path, report: Report) -> None:
    key, value = entry.key, entry.value.strip()
    if not entry.separator or filled_in_later(value) or value[:1] in ("'", '"') or _COMMENT.search(value):
        return  # not known yet, or said already
    if key in BOOLEAN_KEYS and value not in ("true", "false"):
        if value.lower() in ("true", "false"):
            report.warning(entry, f"{key}={value}: not every reader takes it in capitals", f"{key}={value.lower()}")
        else:
            report.error(entry, f'{key}={value} is false: only "true" is true', f"{key}=true or {key}=false")
    elif key in INTEGER_KEYS and not (re.fullmatch(r"[+-]?[0-9]{1,10}", value) and int(value) <= _LARGEST):
        report.error(entry, f"{key}={value} is no whole number up to {_LARGEST}: TorchServe ends once it needs it",
                     f"{key}=NUMBER, in digits only")
    elif key in _PATHS and value and not Path(value).is_absolute():
        report.warning(entry, f"{key}={value} counts from TorchServe's current folder, wherever that is",
                       f"{key}={(path.parent / value).absolute()}, if it is meant from this file")


def _check_addresses(report: Report) -> None:
    inference, management, metrics = (_address(key, report) for key in ADDRESSES)
    if inference and inference[0] in _LOOPBACK:
        report.note("inference_address", "requests are taken from inside of the pod only",
                    f"inference_address=http://0.0.0.0:{inference[1]} in a container")
    if management and management[0] not in _LOOPBACK:
        what = "whoever reaches the pod can manage its models"
        remedy = f"management_address=http://127.0.0.1:{management[1]}"
        if report.says("disable_token_authorization"):
            report.error("management_address", f"{what}, without a token", remedy)
        else:
            report.warning("management_address", what, remedy)
    if metrics is None or report.value("enable_metrics_api", "true").lower() != "true":
        return
    for key, other in (("inference_address", inference), ("management_address", management)):
        if other and other[1] == metrics[1] and (other[0] == metrics[0] or "0.0.0.0" in (other[0], metrics[0])):
            report.error("metrics_address", f"the port of {key}: TorchServe cannot bind it twice, and ends",
                         "metrics_address=http://0.0.0.0:8082")
    if metrics[0] in _LOOPBACK and report.value("metrics_mode") in ("prometheus", "legacy"):
        report.note("metrics_address", "metrics are read from inside of the pod only",
                    f"metrics_address=http://0.0.0.0:{metrics[1]} for a scraper outside")


def _address(key: str, report: Report) -> tuple[str, int] | None:
    """Host and port; None for a Unix socket, for what is filled in later, and for what is no address."""
    value = report.value(key, ADDRESSES[key]).strip("\"'")
    match = re.fullmatch(r"(https?)://([^:/]+)(?::([0-9]{1,5}))?", value)
    if match is None:
        if not value.startswith("unix:/") and not filled_in_later(value):
            report.error(key, f"{value!r} is no address for TorchServe, and it ends", f"{key}={ADDRESSES[key]}")
        return None
    default = {"management_address": 8081, "metrics_address": 8082}.get(key, 443 if match[1] == "https" else 80)
    return match[2], int(match[3] or default)


def _check_choices(report: Report) -> None:
    """What has a bad default, or an effect that few expect."""
    gpus, mode = report.value("number_of_gpu"), report.value("metrics_mode")
    if gpus != "0":
        report.warning("number_of_gpu", f"number_of_gpu is {gpus or 'missing'}: a visible GPU changes the number "
                       "of workers and their devices", "number_of_gpu=0")
    silent = "each value becomes a line of the log, and /metrics stays empty"
    if mode in ("", "log"):
        report.warning("metrics_mode", f"metrics_mode is {mode or 'missing'}: {silent}", "metrics_mode=prometheus")
    elif mode not in ("prometheus", "legacy") and not filled_in_later(mode):
        report.error("metrics_mode", f"there is no metrics_mode {mode}: {silent}", "metrics_mode=prometheus")
    if "disable_token_authorization" not in report.keys:
        report.warning("disable_token_authorization", "disable_token_authorization is missing: from 0.11.1 on a "
                       "request without a key, even /ping, is answered with 400",
                       "disable_token_authorization=true; or =false, if clients have keys")
    if report.says("enable_envvars_config"):
        report.warning("enable_envvars_config", "environment variables (TS_...) override this file",
                       "enable_envvars_config=false")
    if report.says("async_logging"):
        report.warning("async_logging", "async_logging has no effect: log4j has started before it is read",
                       "vmargs=-Dlog4j2.contextSelector=org.apache.logging.log4j.core.async.AsyncLoggerContextSelector")
    if "model_snapshot" in report.keys:
        report.warning("model_snapshot", "a snapshot: models and workers of an earlier run come back, whatever else "
                       "the file says", "remove it, and start with --ncs")
