"""Old TorchServes, each installed beside the others, started on the files that `tscpu config` renders for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from configs.plan import Plan, read_plan
from configs.rendering import Rendered, environment, private_tmp
from configs.torchserve import installed_version
from scripts.console import BUILD

from ..integration.conftest import Server, free_ports, third_model, tscpu, wait_for

VERSIONS = ("0.6.0", "0.6.1", "0.8.2", "0.12.0")
# for one model 0.8.0 too, the first with PyTorch's launcher
ALONE = ("0.6.0", "0.6.1", "0.8.0", "0.8.2", "0.12.0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.integration)


def home(version: str) -> Path | None:
    """A folder with that TorchServe and nothing else, or None where it is the installed one."""
    if version == installed_version():
        return None
    folder = BUILD / "versions" / version
    if not (folder / "ts" / "version.txt").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            target = Path(scratch) / version
            done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                                   str(target), f"torchserve=={version}"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            target.rename(folder)  # as a whole, or a run that was cut short would look like an installation
    return folder


class OldServer(Server):
    """A TorchServe of any version, without the supervisor, on ports of its own."""

    def __init__(self, folder: Path, store: Path, version: str, models: dict[str, Any]) -> None:
        names = ("inference", "management", "metrics", "grpc_inference", "grpc_management")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.version, self.run_dir, self.log = version, folder / "run", folder / "log.txt"
        serving = folder / "serving.yaml"
        serving.write_text(yaml.safe_dump({"ports": self.ports, "placement": "exclusive", "models": models}))
        tscpu("config", "--torchserve", version, "--out", self.run_dir, "--serving", serving, "--model-store", store)
        self.plan: Plan = read_plan(self.run_dir / "plan.json")
        rendered = Rendered(self.run_dir, self.run_dir / "config.properties", self.run_dir / "plan.json",
                            self.run_dir / "log4j2.xml", self.run_dir / "metrics.yaml", private_tmp(self.run_dir))
        inherited = dict(os.environ)
        inherited.pop("PYTHONPATH", None)
        variables, _ = environment(self.plan, rendered, inherited, Path(sys.executable))
        aside = home(version)
        if aside is not None:
            variables["PYTHONPATH"] = str(aside)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ts.model_server", "--start", "--foreground", "--ncs", "--ts-config",
                 str(rendered.config), "--model-store", str(store), "--log-config", str(rendered.log4j2)],
                cwd=self.run_dir, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def workers(self, model: str) -> list[int]:
        """Process ids of the workers that are ready and have reported their place: 0.6.0 calls a worker READY before it
        has a process."""
        return [pid for pid in super().workers(model) if (self.run_dir / "workers" / f"{pid}.json").is_file()]

    def ready(self) -> bool:
        """Whether every planned worker is."""
        try:
            return all(len(self.workers(model.name)) == model.workers for model in self.plan.models)
        except (httpx.HTTPError, LookupError, TypeError, ValueError):
            return False

    def why(self, subject: str) -> str:
        return next(reason.why for reason in self.plan.reasons if reason.subject == subject)

    def end(self) -> None:
        """Ends every process of it. TorchServe's Python parent passes no signal on."""
        self.process.kill()
        self.process.wait(20)

        def gone() -> bool:
            left = self.left_over()
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return not left

        wait_for(gone, 20)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with one small network, as `colours` for the eager and as `hues` for the ipex runtime."""
    folder, own = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("own")
    for name, runtime in (("colours", "eager"), ("hues", "ipex")):
        model = third_model(own / name)
        text = (model / "model.yaml").read_text()
        (model / "model.yaml").write_text(text.replace("name: colours", f"name: {name}")
                                          .replace("runtime: eager", f"runtime: {runtime}"))
        tscpu("build", model, "--model-store", folder)
    return folder


def started(folder: Path, store: Path, version: str, models: dict[str, Any]) -> Iterator[OldServer]:
    """A server that is ready, and gone afterwards, however the tests end."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need a CPU each")
    server = OldServer(folder, store, version, models)
    try:
        yield server.wait_until_ready()
    finally:
        server.end()


@pytest.fixture(scope="module", params=ALONE)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
          store: Path) -> Iterator[OldServer]:
    """One model, two workers with one thread each."""
    yield from started(tmp_path_factory.mktemp("alone"), store, request.param,
                       {"colours": {"workers": 2, "threads": 1}})


@pytest.fixture(scope="module", params=VERSIONS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[OldServer]:
    """Two models with one worker each, of two runtimes."""
    one = {"workers": 1, "threads": 1}
    yield from started(tmp_path_factory.mktemp("pair"), store, request.param, {"colours": one, "hues": one})
