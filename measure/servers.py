"""What answers: one started process tree for each server of a run, how to ask it, and when it is ready.

Every server gets ports, a folder and temporary files of its own. Which archive it serves is `archives`' business; what
it is asked is `rounds`'.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from configs.archives import read_model_store
from configs.errors import ServerError
from configs.limits import read_limits
from configs.planning import make_plan
from configs.rendering import environment, render
from configs.settings import read_settings
from configs.topology import read_topology
from configs.torchserve import installed_version
from measure.archives import NOOP, Store
from measure.bodies import FORM_TYPE, Body
from measure.processes import end, role, tree
from measure.setups import Setup
from serving.client import Client
from serving.processes import process as process_of

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 300.0
PORTS = ("inference", "management", "metrics", "health", "grpc_inference", "grpc_management")
OCTETS = "application/octet-stream"
# what `scripts` or a user's shell may have set, and what would make a stock server less stock
_NOT_STOCK = ("OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "KMP_", "GOMP_", "TS_", "TSCPU_", "LD_PRELOAD", "TORCH_")


@dataclass
class Server:
    """One process tree.

    Attributes:
        url: of requests; empty for processes without a server.
        metrics: URL of TorchServe's metrics, where it has stage counters.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready: Callable[[], bool]
    url: str = ""
    metrics: str = ""
    content_type: str = OCTETS
    paused: bool = field(default=False)

    def wait_until_ready(self) -> None:
        """Waits, at most READY_SECONDS.

        Raises:
            ServerError: it ended, or takes too long; with the last lines of its log.
        """
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise self.failure(f"{self.name} could not start")
            if self.ready():
                return
            time.sleep(0.25)
        raise self.failure(f"{self.name} was not ready within {READY_SECONDS:.0f} s")

    def failure(self, what: str) -> ServerError:
        """An error with the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return ServerError(what, where=str(self.log), why="\n".join(["its last lines:", *lines[-15:]]))

    def stop(self) -> None:
        """Ends it and everything below it. TorchServe's command forwards no signal, so its JVM gets it."""
        jvm = [pid for pid in tree(self.process.pid) if (found := process_of(pid)) and role(found) == "jvm"]
        supervised = "scripts.cli" in self.process.args  # type: ignore[operator]
        end(self.process, first=[] if supervised else jvm)


def start(setup: Setup, store: Store, run: Path, body: Body) -> list[Server]:
    """Starts what a setup's server consists of: one tree, or one for each core in-process.

    Args:
        run: a folder for this run's configurations and logs.
        body: the load's, which in-process workers read themselves.
    """
    folder = run / setup.server.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    if setup.kind == "stock":
        return [_stock(setup, store.folder(setup), folder)]
    model = NOOP if setup.kind == "noop" else setup.model
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    serving = folder / "serving.yaml"
    own = {"runtime": setup.runtime} if setup.runtime else {}
    serving.write_text(json.dumps({"models": {model: own}, "ports": ports}))
    if setup.kind in ("ours", "noop"):
        return [_ours(setup.server, store.folder(setup), serving, folder, model, ports)]
    workers, variables = _planned(store.folder(setup), serving, folder)
    unpacked = store.unpacked(setup.model, setup.runtime)
    if setup.kind == "litserve":
        port = ports["inference"]
        command = [sys.executable, "-m", "measure.peer_litserve", str(unpacked), str(port), str(workers)]
        process = _popen(command, folder, "log", variables, ROOT)
        return [Server(setup.server, process, folder / "log", lambda: _answers(f"http://127.0.0.1:{port}/health"),
                       f"http://127.0.0.1:{port}/predict", content_type=FORM_TYPE)]
    return [_in_process(setup.server, index, unpacked, body, variables, folder) for index in range(workers)]


def _stock(setup: Setup, store: Path, folder: Path) -> Server:
    """TorchServe with what a config.properties must say to start two of them side by side, and no more."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    lines = [f"{name}_address=http://127.0.0.1:{ports[name]}" for name in ("inference", "management", "metrics")]
    lines += [f"{name}_port={ports[name]}" for name in ("grpc_inference", "grpc_management")]
    lines += [f"model_store={store}", "load_models=stock.mar", "disable_token_authorization=true"]
    if setup.name.startswith("intel"):
        lines += ["ipex_enable=true", "cpu_launcher_enable=true"]
    config = folder / "config.properties"
    config.write_text("\n".join(lines) + "\n")
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_STOCK)}
    # as in an activated environment, where the launcher looks for python and for allocators; and its own sockets
    variables.update(PATH=f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', os.defpath)}",
                     VIRTUAL_ENV=sys.prefix, TMPDIR=str(temporary), TEMP=str(temporary))
    process = _popen([str(Path(sys.executable).with_name("torchserve")), "--start", "--foreground", "--ncs",
                      "--ts-config", str(config), "--model-store", str(store)], folder, "log", variables, folder)
    management = f"http://127.0.0.1:{ports['management']}"
    return Server(setup.server, process, folder / "log", lambda: _loaded(management, "stock"),
                  f"http://127.0.0.1:{ports['inference']}/predictions/stock")


def _ours(name: str, store: Path, serving: Path, folder: Path, model: str, ports: dict[str, int]) -> Server:
    process = _popen([sys.executable, "-m", "scripts.cli", "serve", "--serving", str(serving), "--model-store",
                      str(store), "--run-dir", str(folder / "run")], folder, "log", dict(os.environ), ROOT)
    return Server(name, process, folder / "log", lambda: _answers(f"http://127.0.0.1:{ports['health']}/ready"),
                  f"http://127.0.0.1:{ports['inference']}/predictions/{model}",
                  f"http://127.0.0.1:{ports['metrics']}/metrics")


def _planned(store: Path, serving: Path, folder: Path) -> tuple[int, dict[str, str]]:
    """How many workers the plan has, and the environment that `tscpu serve` would give them."""
    settings = read_settings(serving)
    topology = read_topology(Path("/"))
    limits = read_limits(Path("/"), topology.online)
    plan = make_plan(topology, limits, settings, read_model_store(store, list(settings.models)), installed_version())
    rendered = render(plan, settings, store, folder / "run")
    return plan.models[0].workers, environment(plan, rendered, os.environ, Path(sys.executable))[0]


def _in_process(name: str, index: int, unpacked: Path, body: Body, variables: dict[str, str], folder: Path) -> Server:
    log = folder / f"log-{index}"
    with log.open("wb") as errors:
        process = subprocess.Popen([sys.executable, "-m", "measure.in_process", str(unpacked), str(body.path)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=variables,
                                   cwd=ROOT, start_new_session=True)
    said = process.stdout
    assert said is not None
    return Server(f"{name}#{index}", process, log, lambda: said.readline().strip() == b"ready")


def _popen(command: list[str], folder: Path, log: str, variables: dict[str, str],
           directory: Path) -> subprocess.Popen[bytes]:
    with (folder / log).open("wb") as file:
        return subprocess.Popen(command, env=variables, cwd=directory, stdin=subprocess.DEVNULL, stdout=file,
                                stderr=subprocess.STDOUT, start_new_session=True)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _loaded(management: str, model: str) -> bool:
    try:
        with Client(management=management, timeout=5) as client:
            status = client.describe(model)
    except ServerError:
        return False
    return bool(status.workers) and status.ready_workers == len(status.workers)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
