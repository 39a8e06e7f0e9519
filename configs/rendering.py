"""Plan → config.properties, plan.json, log4j2.xml, metrics.yaml, and the environment of TorchServe's processes.

Every key is written with the reason for it. TorchServe reads config.properties twice, in Java and in Python, by
different rules; both agree on `key=value` lines without quotes, continuations or trailing blanks, and only those
are written. Nothing is left half-written: files are replaced as wholes.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from configs.errors import SettingsError
from configs.plan import Plan
from configs.settings import Settings
from configs.topology import format_cpu_list
from configs.torchserve import key_of_variable, knows_startup_timeout

# What Java's Properties (ISO 8859-1, escapes), the Python launcher, comma lists and $$VAR$$ all leave as it is.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./@%+~-]+")
# A Unix socket's address holds 107 bytes; TorchServe appends "/.ts.sock.9000".
_LONGEST_TMP = 80


@dataclass(frozen=True)
class Rendered:
    """The files of one pod start. `tmp` is private to it: TorchServe keeps sockets, archives and its pid file there."""

    folder: Path
    config: Path
    plan: Path
    log4j2: Path
    metrics: Path
    tmp: Path


def render(plan: Plan, settings: Settings, model_store: Path, folder: Path) -> Rendered:
    """Writes all files into a folder, which is created.

    Raises:
        SettingsError: a path that config.properties cannot hold, or that cannot be written.
    """
    folder = folder.resolve()
    model_store = model_store.resolve()
    for path in (folder, model_store):
        if not _PLAIN_PATH.fullmatch(str(path)):
            raise SettingsError("TorchServe cannot take this path", where=str(path),
                                why="its two parsers agree only on ASCII without blanks and the like: "
                                    f"{''.join(sorted(set(_PLAIN_PATH.sub('', str(path)))))!r} is none of theirs",
                                remedy="use another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rendered = Rendered(folder, folder / "config.properties", folder / "plan.json", folder / "log4j2.xml",
                            folder / "metrics.yaml", private_tmp(folder))
        _write(rendered.plan, json.dumps(plan.to_dict(), indent=1) + "\n")
        _write(rendered.config, config_properties(plan, settings, model_store, rendered))
        _write(rendered.log4j2, log4j2(settings.access_log))
        _write(rendered.metrics, _METRICS)
    except OSError as error:
        raise SettingsError("cannot write the configuration", where=str(error.filename or folder),
                            why=error.strerror or str(error), remedy="use another folder") from error
    return rendered


def private_tmp(folder: Path) -> Path:
    """A run folder's own folder for temporary files, made if it is missing.

    Elsewhere where the path of a socket in it would be too long.
    """
    tmp = folder / "tmp"
    if len(str(tmp)) > _LONGEST_TMP:
        # kept for the folder's next start too, so that nothing piles up; TMPDIR may be long itself
        short = min(tempfile.gettempdir(), "/tmp", key=lambda place: len(place) > _LONGEST_TMP - 20)
        tmp = Path(short) / f"tscpu-{zlib.crc32(str(folder).encode()):08x}"
    tmp.mkdir(mode=0o700, parents=True, exist_ok=True)
    if tmp.stat().st_uid != os.geteuid():
        raise SettingsError("the folder for temporary files belongs to somebody else", where=str(tmp),
                            why="sockets and unpacked archives would lie open to them",
                            remedy="remove it, or use a run folder with a shorter path")
    return tmp


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def config_properties(plan: Plan, settings: Settings, model_store: Path, rendered: Rendered) -> str:
    """The text of config.properties."""
    ports = settings.ports
    own_startup = knows_startup_timeout(plan.torchserve_version)
    timeouts = {model.name: model.response_timeout_s if own_startup
                else max(model.response_timeout_s, model.startup_timeout_s) for model in plan.models}
    models = {
        model.name: {model.version: {
            "marName": model.archive, "minWorkers": model.workers, "maxWorkers": model.workers,
            "batchSize": model.batch_size, "maxBatchDelay": model.max_batch_delay_ms,
            "responseTimeout": timeouts[model.name], "startupTimeout": model.startup_timeout_s}}
        for model in plan.models}
    lines: list[str] = ["# Generated from the pod by `tscpu config`; `tscpu plan --explain` gives the reason of each "
                        "number.", ""]

    def section(title: str) -> None:
        lines.extend(["", f"# --- {title}"])

    def key(name: str, value: object, why: str) -> None:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        lines.extend([f"# {why}", f"{name}={text}"])

    section("models")
    key("model_store", model_store, "where the archives are; read by Java and by the Python launcher")
    key("load_models", ",".join(model.archive for model in plan.models), "only what was planned")
    for model in plan.models:
        lines.append(f"# {model.name}: {model.workers} worker(s) with {model.threads} torch thread(s) each, on CPUs "
                     + " ".join(format_cpu_list(slot.cpus) for slot in model.slots))
    key("models", json.dumps(models, separators=(",", ":")),
        "minWorkers = maxWorkers: TorchServe never scales by itself between the two")
    key("default_workers_per_model", 1, "a model registered later must not get a worker for each CPU of the node")
    key("job_queue_size", settings.job_queue_size, "requests that may wait, a model; the next one gets a 503")
    key("default_response_timeout", max(timeouts.values()), "seconds; a worker that takes longer is killed"
        + ("" if own_startup else f", and TorchServe {plan.torchserve_version} counts loading as a response"))
    key("default_startup_timeout", max(model.startup_timeout_s for model in plan.models), "seconds, for loading")
    key("install_py_dep_per_model", False, "no pip at a pod's start: the image holds what archives need")

    section("CPU")
    key("number_of_gpu", 0, "always, on CPUs: one visible GPU would change the default worker count and devices")
    key("ipex_enable", plan.ipex, "workers import Intel Extension for PyTorch")
    key("cpu_launcher_enable", plan.launcher, next(r.why for r in plan.reasons if r.subject == "cpu_launcher_enable"))
    if plan.launcher:
        key("cpu_launcher_args", plan.launcher_args, "CPU ids of the plan's slots; --ninstances and --rank are "
                                                     "TorchServe's own")

    section("addresses")
    key("inference_address", f"http://{settings.bind}:{ports.inference}", "the only port that clients need")
    key("management_address", f"http://127.0.0.1:{ports.management}", "never reachable from outside the pod")
    key("metrics_address", f"http://{settings.bind}:{ports.metrics}", "Prometheus")
    key("grpc_inference_port", ports.grpc_inference, "cannot be switched off; listens on loopback")
    key("grpc_management_port", ports.grpc_management, "likewise")
    key("disable_token_authorization", not settings.token_authorization,
        "the management port is on loopback; with keys, even /ping answers 400 without one"
        if not settings.token_authorization else "every request needs the key from key_file.json")
    key("enable_model_api", False, "models are the image's business: none is registered or removed at run time")
    key("allowed_urls", f"file://{model_store}/.*", "no archive is fetched from elsewhere")

    section("requests")
    largest = settings.max_request_mb * 2**20
    key("max_request_size", largest, f"bytes: {settings.max_request_mb} MiB; larger ones get a 413")
    key("max_response_size", 2**20, "bytes; answers are small, and this much is reserved for none")
    key("decode_input_request", False, "the handler parses JSON itself, and answers bad JSON with a 400 of its own")
    key("prefer_direct_buffer", False, "direct buffers count against the pod's memory and gain nothing here")
    threads = max(1, min(4, plan.jvm_cpus))
    key("number_of_netty_threads", threads, "HTTP threads; the default is twice the CPUs the JVM counts")
    key("netty_client_threads", threads, "threads towards the workers")

    section("observation")
    key("metrics_mode", "prometheus", "the default writes a log line for every value and leaves /metrics empty")
    key("metrics_config", rendered.metrics, "declares what the handlers measure: undeclared metrics vanish")
    key("disable_system_metrics", True, "they are the node's, not the pod's, and start a Python process a minute")

    section("JVM")
    key("vmargs", " ".join(vmargs(plan)), "read by the Python launcher only, from this one line")
    return "\n".join(lines) + "\n"


def vmargs(plan: Plan) -> list[str]:
    """The JVM's flags.

    -XX:ActiveProcessorCount: the plan's own count. -Xmx: its heap only passes requests on. SerialGC: parallel
    collectors start threads that compete with the workers. -XX:TieredStopAtLevel is left alone: the second compiler
    pays for itself within a minute. ForkJoinPool: with two processors or fewer its parallelism would be 1, and
    CompletableFuture then starts a new thread for every batch.
    """
    return [f"-XX:ActiveProcessorCount={plan.jvm_cpus}", f"-Xmx{plan.jvm_heap_mb}m", "-XX:+UseSerialGC",
            f"-Djava.util.concurrent.ForkJoinPool.common.parallelism={max(2, plan.jvm_cpus)}"]


# What would act behind the plan's back, and how.
_PLACES = "the plan places workers and counts their threads"
_REMOVED = {
    **dict.fromkeys(("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "OMP_PLACES", "OMP_PROC_BIND",
                     "OMP_THREAD_LIMIT", "OMP_DYNAMIC"), _PLACES),
    "TS_CONFIG_FILE": "TorchServe would read that file instead of the one just written",
    "TS_MODEL_SERVER_HOME": "TorchServe would take its own files from there",
    "CUDA_VISIBLE_DEVICES": "TorchServe would count each of its entries as a GPU",
    "LD_BIND_NOW": "every process would resolve all of torch's symbols before it starts",
}


def environment(plan: Plan, rendered: Rendered, inherited: Mapping[str, str],
                python: Path) -> tuple[dict[str, str], list[str]]:
    """The environment of TorchServe and its workers, and a line for every inherited variable that gave way.

    Args:
        python: the interpreter that runs the workers; its folder comes first on PATH, since TorchServe probes its
            launcher with a bare `python`.
    """
    result = dict(inherited)
    notes = [f"environment: {name}={result.pop(name)} is removed: {why}" for name, why in _REMOVED.items()
             if name in result]
    notes += [f"environment: {name}={value} is ignored: it would set {key}, and the file does not let variables do so"
              for name, value in sorted(result.items())
              if (key := key_of_variable(name)) and name != "TS_OPEN_INFERENCE_PROTOCOL"]
    for name, value in _variables(plan, rendered, python, inherited.get("PATH", os.defpath)).items():
        if name in result and result[name] != value and name not in ("PATH", "TMPDIR", "TEMP"):
            notes.append(f"environment: {name}={result[name]} gives way to the plan's {value}")
        result[name] = value
    return result, notes


def _variables(plan: Plan, rendered: Rendered, python: Path, path: str) -> dict[str, str]:
    # torch's own setting is made in the worker, model by model; this is for libraries that start earlier
    threads = str(min(model.threads for model in plan.models))
    variables = {
        "TSCPU_PLAN": str(rendered.plan), "PATH": f"{python.parent}{os.pathsep}{path}",
        "TMPDIR": str(rendered.tmp), "TEMP": str(rendered.tmp),
        "LOG_LOCATION": str(rendered.folder / "logs"), "METRICS_LOCATION": str(rendered.folder / "logs"),
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads,
        # glibc gives every large block back to the kernel at once and faults it in again for the next layer;
        # keeping them is worth as much as the extension itself
        "MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_ARENA_MAX": "2",
        # on huge pages weights and activations miss the TLB less: 2 to 8 % of an inference
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        # importing IPEX imports torch's inductor, which starts a pool of compiling processes beside every worker
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if not plan.spin:
        variables.update(OMP_WAIT_POLICY="PASSIVE", KMP_BLOCKTIME="0", GOMP_SPINCOUNT="0")
    return variables


def log4j2(access_log: bool) -> str:
    """The text of log4j2.xml: console only; TorchServe's warnings, the workers' own lines, nothing for each request."""
    pattern = quoteattr("%d{ISO8601} [%-5p] %t %c{1} - %m%n")
    return f'''<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="warn">
  <Appenders>
    <Console name="console" target="SYSTEM_OUT"><PatternLayout pattern={pattern}/></Console>
  </Appenders>
  <Loggers>
    <Root level="warn"><AppenderRef ref="console"/></Root>
    <!-- TorchServe's own: at debug it writes a dozen lines a request -->
    <Logger name="org.pytorch.serve" level="warn"/>
    <!-- standard output and error of the workers: loading, placement, exceptions; handlers are quiet afterwards -->
    <Logger name="MODEL_LOG" level="info"/>
    <Logger name="ACCESS_LOG" level="{"info" if access_log else "off"}"/>
    <!-- metrics are served at /metrics; these would write each value as a line -->
    <Logger name="TS_METRICS" level="off"/>
    <Logger name="MODEL_METRICS" level="off"/>
  </Loggers>
</Configuration>
'''


_METRICS = """\
# What TorchServe collects. A metric that is not declared here vanishes.
dimensions:
  - &model_name "ModelName"
  - &worker_name "WorkerName"
  - &level "Level"
  - &hostname "Hostname"
  - &stage "Stage"
ts_metrics:
  counter:
    - name: Requests2XX
      unit: Count
      dimensions: [*level, *hostname]
    - name: Requests4XX
      unit: Count
      dimensions: [*level, *hostname]
    - name: Requests5XX
      unit: Count
      dimensions: [*level, *hostname]
    - name: ts_inference_requests_total
      unit: Count
      dimensions: ["model_name", "model_version", "hostname"]
    - name: ts_inference_latency_microseconds
      unit: Microseconds
      dimensions: ["model_name", "model_version", "hostname"]
    - name: ts_queue_latency_microseconds
      unit: Microseconds
      dimensions: ["model_name", "model_version", "hostname"]
  gauge:
    - name: QueueTime
      unit: Milliseconds
      dimensions: [*level, *hostname]
    - name: WorkerLoadTime
      unit: Milliseconds
      dimensions: [*worker_name, *level, *hostname]
model_metrics:  # TorchServe adds Level to whatever a handler names
  counter:
    - name: StageSeconds
      unit: s
      dimensions: [*model_name, *stage, *level]
    - name: StageCpuSeconds
      unit: s
      dimensions: [*model_name, *stage, *level]
    - name: StageImages
      unit: count
      dimensions: [*model_name, *level]
"""
