"""The image's health check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving import probe
from serving.health import Health, HealthServer


def health(ready: bool) -> Health:
    return Health(True, ready, ready, "ready" if ready else "starting", ())


@pytest.mark.parametrize("ready", [True, False])
def test_it_is_healthy_when_it_is_ready(ready: bool) -> None:
    with HealthServer("127.0.0.1", 0, lambda: health(ready)) as server:
        url = f"http://127.0.0.1:{server.port}/ready"
        done = subprocess.run([sys.executable, "-I", "-S", str(Path(probe.__file__)), url], capture_output=True,
                              text=True, check=False)
    assert done.returncode == (0 if ready else 1)
    assert ("503" in done.stdout and "starting" in done.stdout) is not ready


def test_nobody_there() -> None:
    assert "refused" in probe.probe("http://127.0.0.1:1/ready")
