"""Generators: their output becomes figures, and trouble is not overlooked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from configs.errors import ServerError, SettingsError
from measure import load

WRK = """\
Running 8s test @ http://127.0.0.1:8080/predictions/food_recognizer
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    51.13ms    9.70ms  98.01ms   75.00%
Requests/sec:    156.02
{"requests":1250,"seconds":8.011000,"statuses":{"503":2,"200":1248},"errors":{"connect":0,"read":1,"write":0,\
"timeout":0},"latency_ms":{"p50":50.100,"p90":60.000,"p99":74.500,"max":98.010}}
"""


def test_wrks_output_becomes_figures() -> None:
    found = load.parse(WRK, 0.25)
    assert (found.requests, found.seconds, found.cpu_seconds) == (1250, 8.011, 0.25)
    assert found.statuses == {"200": 1248, "503": 2} and found.latency_ms["p99"] == 74.5
    assert found.rate == pytest.approx(156.03, abs=0.01)
    assert found.trouble == "2 answers with status 503, 1 read errors"


def test_a_generator_that_knows_its_own_cost_is_believed() -> None:
    text = '{"requests": 1, "seconds": 1, "statuses": {"200": 1}, "errors": {}, "latency_ms": {}, "cpu_seconds": 0.1}'
    assert load.parse(text, 9.0).cpu_seconds == 0.1
    assert not load.parse(text, 9.0).trouble


@pytest.mark.parametrize("text", ["", "unable to connect to 127.0.0.1:1", '{"requests": 1}', "{broken"])
def test_output_without_figures_is_an_error(text: str) -> None:
    with pytest.raises(ServerError, match="printed no figures"):
        load.parse(text, 0.0)


def test_a_missing_generator_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "installed", lambda name: False)
    with pytest.raises(SettingsError, match=r"apt-get install wrk or pip install -e '\.\[bench\]'"):
        load.candidates("auto")
    with pytest.raises(SettingsError, match="apt-get install wrk"):
        load.candidates("wrk")
    with pytest.raises(SettingsError, match="no load generator 'ab'"):
        load.candidates("ab")


def test_a_generator_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "wrk"
    tool.write_text(f"#!{sys.executable}\nraise SystemExit('no such host')\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="no such host"):
        load.start("wrk", "http://127.0.0.1:1/", tmp_path / "wrk", "image/jpeg", 1, 1, tmp_path)()


def test_a_generators_cost_at_another_rate_comes_from_two() -> None:
    # 10 ms of CPU a second, and 0.3 ms a request
    slow, fast = (load.Load(int(rate), 1.0, cpu_seconds=0.010 + 0.0003 * rate) for rate in (50.0, 1000.0))
    assert load.cost_at(200.0, [slow, fast]) == pytest.approx(0.35)
    assert load.cost_at(200.0, [fast]) == pytest.approx(0.31)
    assert load.cost_at(200.0, [load.Load(0, 1.0)]) == 0.0
