"""The image, built for real with buildah on a Debian that is bootstrapped here, and run with podman."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.engines import Engine, find_engine
from scripts.console import MODEL_STORE
from scripts.demo import DEMO_MODELS

from ..integration.conftest import build_demo_models, free_ports, tscpu

BASE = "localhost/debian:bookworm-bootstrapped"
IMAGE = "localhost/torchserve-cpu-toolkit:0.1.0"
READY_SECONDS = 300.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("podman", "buildah", "debootstrap") if shutil.which(name) is None]
    why = "" if os.geteuid() == 0 else "only root may bootstrap a Debian"
    why = f"not installed: {', '.join(missing)}" if missing else why
    for item in items:
        if why and Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def podman() -> Engine:
    return find_engine("podman")


def exists(podman: Engine, image: str) -> bool:
    command = ["podman", "image", "exists", image]
    return subprocess.run(command, env=dict(podman.environment), check=False).returncode == 0


@pytest.fixture(scope="session")
def base(podman: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A minimal Debian 12 that trusts what this machine trusts, or no package could be had through its proxy."""
    if exists(podman, BASE):
        return BASE
    folder = tmp_path_factory.mktemp("debian") / "root"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(folder)], check=True, stdout=subprocess.DEVNULL)
    trusted = Path(os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile or "")
    if trusted.is_file():
        copy = folder / "usr" / "local" / "share" / "trusted.pem"
        copy.write_bytes(trusted.read_bytes())
        (folder / "etc" / "pip.conf").write_text("[global]\ncert = /usr/local/share/trusted.pem\n")
    with subprocess.Popen(["tar", "-C", str(folder), "-c", "--exclude=./var/cache/apt/archives/*.deb", "."],
                          stdout=subprocess.PIPE) as tar:
        subprocess.run(["podman", "import", "--quiet", "--change", f"ENV PATH={PATH}", "-", BASE], check=True,
                       stdin=tar.stdout, env=dict(podman.environment))
    shutil.rmtree(folder)
    return BASE


@pytest.fixture(scope="session")
def image(podman: Engine, base: str) -> str:
    """The image, as `make image` makes it, with both demo models."""
    build_demo_models()
    for name in MODEL_STORE.glob("*.mar"):
        assert name.stem in DEMO_MODELS, f"{name} would be baked in too: remove it"
    index = os.environ.get("TORCH_INDEX_URL", "")  # the default index, unless there is one of CPU wheels
    tscpu("image", "--engine", "buildah", "--base", base, "--image", IMAGE, "--torch-index-url", index, timeout=2400)
    return IMAGE


class Container:
    """One `podman run` as hardened as the manifests have it, with its ports on the loopback address."""

    def __init__(self, podman: Engine, image: str, *options: str, rest: tuple[str, ...] = ()) -> None:
        self._podman = podman
        self.inference, self.health = free_ports(2)
        self.id = podman.run(
            "run", "--detach", "--read-only", "--read-only-tmpfs=false", "--tmpfs", "/run/tscpu:rw,exec,mode=1777",
            "--tmpfs", "/tmp:rw,mode=1777", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--publish", f"127.0.0.1:{self.inference}:8080", "--publish", f"127.0.0.1:{self.health}:8090",
            *options, image, *rest).strip()

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._podman.run("inspect", "--format", "{{json .State}}", self.id))
        return found

    def log(self) -> str:
        done = subprocess.run(["podman", "logs", self.id], env=dict(self._podman.environment), check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout

    def execute(self, *command: str) -> str:
        return self._podman.run("exec", self.id, *command)

    def get(self, path: str) -> int:
        """The status of the health port; 0 without an answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.health}{path}", timeout=5, trust_env=False).status_code
        except httpx.HTTPError:
            return 0

    def wait_until_ready(self) -> None:
        end = time.monotonic() + READY_SECONDS
        while self.get("/ready") != 200:
            assert self.state["Running"], self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.5)

    def wait_until_ended(self, seconds: float) -> int:
        """Its exit code."""
        end = time.monotonic() + seconds
        while self.state["Running"]:
            assert time.monotonic() < end, self.log()
            time.sleep(0.1)
        return int(self.state["ExitCode"])

    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.execute("cat", "/run/tscpu/plan.json"))
        return found

    def remove(self) -> None:
        self._podman.run("rm", "--force", "--time", "1", self.id)


Run = Callable[..., Container]


@pytest.fixture
def run(podman: Engine, image: str) -> Iterator[Run]:
    """Starts containers, and removes them in the end."""
    started: list[Container] = []

    def start(*options: str, rest: tuple[str, ...] = ()) -> Container:
        started.append(Container(podman, image, *options, rest=rest))
        return started[-1]

    yield start
    for container in started:
        container.remove()
