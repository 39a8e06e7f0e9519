"""Records and windows as a run writes them, with figures that are easy to reckon with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def window(setup: str, rate: float, number: int = 0, group: int = 0, **more: Any) -> dict[str, Any]:
    """A valid window of a thousand requests."""
    return {"group": group, "round": number, "setup": setup, "rate": rate, "requests": 1000, "seconds": 1000 / rate,
            "handled": 1000, "statuses": {"200": 1000}, "errors": {}, "checks": 4, "wrong": [], "trouble": "",
            "latency_ms": {"p50": 10.0, "p90": 20.0, "p99": 30.0, "max": 40.0}, "valid": True,
            "cpu_seconds": {"jvm": 1.0, "worker": 8.0, "other": 0.1, "client": 0.2}, "stages_ms": {}, "stage_clock": "",
            "idle_share": 0.004, "others_share": 0.01, "stolen_share": 0.0, **more}


def student(folder: Path, name: str, provenance: object = None) -> Path:
    """What a student's folder has, as far as names go."""
    (folder / name).mkdir(parents=True)
    (folder / name / "model.yaml").write_text(f"name: {name}\n")
    if provenance is not None:
        (folder / name / "provenance.json").write_text(json.dumps(provenance))
    return folder / name


def record(windows: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole record around these windows."""
    names = list(dict.fromkeys(each["setup"] for each in windows))
    return {"format": 1, "suite": "handler", "complete": True, "started": "2026-01-31T12:00:00+0000",
            "options": {"rounds": 2, "warm_up": 25.0, "window": 8.0, "clients": 8},
            "machine": {"cpu_model": "A CPU", "flags": ["avx2"], "allowed_cpus": "0-1", "physical_cores": 2,
                        "memory_gib": 24.0, "kernel": "6.1", "python": "3.11.7", "java": "openjdk 17",
                        "versions": {"torch": "2.8.0"}},
            "photo": {"photo": "china", "width": 640, "height": 427, "bytes": {"jpeg": 196653, "tensor": 150656}},
            "skipped": {"food/openvino": "openvino not installed"}, "groups": [names], "idle": [
                {"share": 0.004, "paused": False}],
            "setups": {name: {"description": f"what {name} is", "workers": [{"pid": 1, "cpus": [0]}]}
                       for name in names},
            "generator": "wrk", "windows": windows, "generators": {"wrk": {
                "measured": [{"setup": "food/ipex", "rate": 150.0, "cpu_ms_per_request": 0.1}], "cpu_ms_at_200": 0.1,
                "share_at_200": 0.01}}}
