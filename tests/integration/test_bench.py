"""tscpu bench on real servers, with windows too short to mean anything but long enough to be real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, tscpu, wait_for

SHORT = ("--rounds", "1", "--warm-up", "1", "--window", "2")
needs_a_generator = pytest.mark.skipif(
    shutil.which("wrk") is None and not any(Path(entry, "locust").is_dir() for entry in sys.path),
    reason="neither wrk nor Locust is installed")


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that carry a run's folder in their arguments or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


@needs_a_generator
def test_a_short_run_writes_both_files_and_leaves_nothing(tmp_path: Path) -> None:
    done = tscpu("bench", *SHORT, "--setups", "noop,food/eager,in-process/eager", "--out", tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "handler.json").read_text())
    assert record["complete"] and [window["setup"] for window in record["windows"]] == [
        "noop", "food/eager", "in-process/eager"]
    noop, food, alone = record["windows"]
    assert all(window["valid"] and window["rate"] > 0 and not window["wrong"] for window in record["windows"])
    assert food["checks"] > 0 and food["latency_ms"]["p99"] >= food["latency_ms"]["p50"] > 0
    assert noop["cpu_seconds"]["jvm"] > 0 and food["cpu_seconds"]["worker"] > 0 and food["cpu_seconds"]["client"] > 0
    assert {"decode", "preprocess", "infer"} <= food["stages_ms"].keys() and alone["stages_ms"]["infer"] > 0
    report = (tmp_path / "handler.md").read_text()
    assert report in done.stdout and "## Targets" in report and "NOT MEASURED" in report
    assert not processes_of(tmp_path)


@needs_a_generator
def test_ctrl_c_ends_every_server(tmp_path: Path) -> None:
    # archives and servers of the first test's kind, interrupted while they warm up
    run = subprocess.Popen([sys.executable, "-m", "scripts.cli", "bench", "--rounds", "9", "--warm-up", "60",
                            "--setups", "noop,in-process/eager", "--out", str(tmp_path)], cwd=ROOT,
                           stderr=subprocess.PIPE)
    try:
        wait_for(lambda: any("wrk" in each or "load_locust" in each for each in processes_of(tmp_path))
                 or run.poll() is not None, 240)
        time.sleep(1)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130, said.decode()
    assert b"all servers are stopped" in said
    assert not processes_of(tmp_path)


def test_what_cannot_run_is_said_at_once(tmp_path: Path) -> None:
    done = tscpu("bench", "--setups", "food/tensorrt", "--out", tmp_path, check=False)
    assert done.returncode == 2 and "food/tensorrt" in done.stderr and "food/openvino" in done.stderr
    assert not list(tmp_path.iterdir())
