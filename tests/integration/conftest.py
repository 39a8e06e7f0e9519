"""A real TorchServe: archives are built once for all tests, servers are started by `tscpu serve` as a user would."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from PIL import Image

from models.datasets import load_photo
from scripts.console import MODEL_STORE
from scripts.demo import DEMO_MODELS, out_of_date

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 240.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.integration)


def tscpu(*arguments: str | Path, check: bool = True, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """The command as a user types it."""
    done = subprocess.run([sys.executable, "-m", "scripts.cli", *map(str, arguments)], cwd=ROOT, capture_output=True,
                          text=True, check=False, **kwargs)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


class ChannelMeans(torch.nn.Module):
    """A third model: which of red, green and blue is the most of a photo? Its answers tell inputs apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 8.0 * x.mean((2, 3))


def third_model(folder: Path, batch: int = 3) -> Path:
    """A folder of a user's own: a TorchScript file and ten lines of model.yaml."""
    folder.mkdir(parents=True)
    torch.jit.trace(ChannelMeans().eval(), torch.zeros(1, 3, 32, 32)).save(str(folder / "network.pt"))
    (folder / "labels.json").write_text('["red", "green", "blue"]')
    (folder / "model.yaml").write_text(f"""\
name: colours
handler: classifier
runtime: eager
network: {{file: network.pt}}
labels: labels.json
input: {{size: 32, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}
output: {{top_k: 3}}
batch:
  size: {batch}
  max_delay_ms: 300
""")
    return folder


def build_demo_models() -> None:
    """Brings both demo models in the model store up to date."""
    stale = [name for name in DEMO_MODELS if out_of_date(name)]
    if stale:
        tscpu("build", *stale)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with both demo models and the third one."""
    build_demo_models()
    folder = tmp_path_factory.mktemp("store")
    for name in DEMO_MODELS:
        for suffix in (".mar", ".measured.json"):
            shutil.copy(MODEL_STORE / f"{name}{suffix}", folder)
    tscpu("build", third_model(tmp_path_factory.mktemp("own") / "colours"), "--model-store", folder)
    return folder


@pytest.fixture(scope="session")
def coffee() -> bytes:
    """A photo of a cup of coffee, as JPEG."""
    stream = io.BytesIO()
    Image.fromarray(load_photo("coffee")).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Server:
    """One `tscpu serve`, on ports of its own."""

    def __init__(self, folder: Path, store: Path, prefix: tuple[str, ...] = (), **settings: Any) -> None:
        names = ("inference", "management", "metrics", "health", "grpc_inference", "grpc_management")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.run_dir, self.log = folder / "run", folder / "log.txt"
        serving = folder / "serving.yaml"
        serving.write_text(yaml.safe_dump({"ports": self.ports, **settings}))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "scripts.cli", "serve", "--serving", str(serving), "--model-store",
                 str(store), "--run-dir", str(self.run_dir)], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True)

    def url(self, port: str, path: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def ready(self) -> bool:
        try:
            return httpx.get(self.url("health", "/ready"), timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until_ready(self) -> Server:
        wait_for(lambda: self.ready() or self.process.poll() is not None, READY_SECONDS, self.text)
        assert self.process.poll() is None, self.text()
        return self

    def post(self, model: str, **request: Any) -> httpx.Response:
        return httpx.post(self.url("inference", f"/predictions/{model}"), timeout=60, trust_env=False, **request)

    def workers(self, model: str) -> list[int]:
        """Process ids, as TorchServe's management API has them."""
        found = httpx.get(self.url("management", f"/models/{model}"), timeout=5, trust_env=False).json()
        return [worker["pid"] for worker in found[0]["workers"] if worker["status"] == "READY"]

    def inspect(self) -> subprocess.CompletedProcess[str]:
        return tscpu("inspect", "--run-dir", self.run_dir, "--management", self.url("management", ""), check=False)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def left_over(self) -> list[int]:
        """Processes that still carry this start's plan in their environment."""
        marker = f"TSCPU_PLAN={self.run_dir.resolve() / 'plan.json'}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and marker in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def java(self) -> int:
        return next(pid for pid in self.left_over() if "org.pytorch.serve.ModelServer" in command_line(pid))

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def wait_for(condition: Callable[[], bool], seconds: float, explain: Callable[[], str] = str) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {explain()}")


@pytest.fixture
def start(tmp_path: Path, store: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that are gone after the test, however it ends."""
    servers: list[Server] = []

    def make(**settings: Any) -> Server:
        folder = tmp_path / f"server-{len(servers)}"
        folder.mkdir()
        servers.append(Server(folder, settings.pop("store", store), **settings))
        return servers[-1]

    yield make
    for server in servers:
        end_all(server)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[Server]:
    """One server with all three models, shared by the tests of a module."""
    server = Server(tmp_path_factory.mktemp("shared"), store)
    try:
        yield server.wait_until_ready()
    finally:
        end_all(server)


def end_all(server: Server) -> None:
    if server.process.poll() is None:
        server.process.terminate()
        try:
            server.process.wait(40)
        except subprocess.TimeoutExpired:
            server.process.kill()
    for pid in server.left_over():
        os.kill(pid, signal.SIGKILL)


def plan_of(server: Server) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((server.run_dir / "plan.json").read_text())
    return plan
