"""Workers keep to their slots: killed at random, scaled up and down, started again; and the audit says so."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from .conftest import Server, end_all, plan_of, tscpu, wait_for

Start = Callable[..., Server]
BOTH = {"models": {"food_recognizer": {}, "image_scorer": {}}}
KILLS = 10

needs_two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")


class Load(Thread):
    """One client a model, asking on and on; remembers when each request began and whether it was answered."""

    def __init__(self, server: Server, photo: bytes) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, str]] = []
        self._server, self._photo, self._end = server, photo, Event()

    def run(self) -> None:
        while not self._end.is_set():
            for model in BOTH["models"]:
                began = time.monotonic()
                try:
                    answer = self._server.post(model, content=self._photo)
                    result = "" if answer.status_code == 200 else f"{answer.status_code} {answer.text}"
                except httpx.HTTPError as error:
                    result = repr(error)
                self.seen.append((began, result))

    def stop(self) -> None:
        self._end.set()
        self.join(60)


def test_ten_random_kills_leave_every_worker_on_its_slot(start: Start, coffee: bytes) -> None:
    server = start(**BOTH).wait_until_ready()
    dice = random.Random(7)
    load = Load(server, coffee)
    load.start()
    calm: list[tuple[float, float]] = []  # from a replacement's READY to the next kill
    since = time.monotonic()
    for _ in range(KILLS):
        victim = dice.choice([pid for name in BOTH["models"] for pid in server.workers(name)])
        calm.append((since, time.monotonic()))
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not server.ready(), 20, server.text)
        server.wait_until_ready()
        since = time.monotonic()
        found = server.inspect()
        assert found.returncode == 0, found.stdout
    time.sleep(2)
    load.stop()
    calm.append((since, time.monotonic()))
    # a request that began just before a kill is in the dying worker's hands
    failed = [result for began, result in load.seen if result
              and any(start <= began < end - 1.0 for start, end in calm)]
    assert not failed, failed[:3]
    assert sum(not result for _, result in load.seen) > KILLS
    assert server.stop() == 0 and server.left_over() == []


def scale(server: Server, model: str, workers: int) -> None:
    httpx.put(server.url("management", f"/models/{model}"), timeout=120, trust_env=False,
              params={"min_worker": workers, "max_worker": workers, "synchronous": "true"}).raise_for_status()
    wait_for(lambda: len(server.workers(model)) == workers, 60, server.text)


def report(server: Server) -> Any:
    return json.loads(tscpu("inspect", "--json", "--run-dir", server.run_dir, "--management",
                            server.url("management", ""), check=False).stdout)


def places(server: Server, model: str) -> list[set[int]]:
    return [os.sched_getaffinity(pid) for pid in server.workers(model)]


@needs_two_cpus
def test_scaling_beyond_the_plan_is_called_so_and_undone(start: Start) -> None:
    server = start(**BOTH).wait_until_ready()
    before = places(server, "image_scorer")
    scale(server, "image_scorer", 2)
    assert server.inspect().returncode == 1
    assert [row["verdict"] for row in report(server)["workers"]] == ["OK", "OK", "OVERSUBSCRIBED"]
    assert "min_worker=1" in report(server)["workers"][2]["remedy"]
    scale(server, "image_scorer", 1)
    wait_for(lambda: server.inspect().returncode == 0, 20, lambda: server.inspect().stdout)
    assert places(server, "image_scorer") == before


@needs_two_cpus
def test_scaling_down_and_up_with_the_launcher_leaves_no_slot_held_twice(start: Start) -> None:
    """Each scaling restarts the workers with new ranks, which the launcher counts from 0 again."""
    server = start(models={"colours": {}}).wait_until_ready()
    if not plan_of(server)["launcher"]:
        pytest.skip("the launcher is off here")
    scale(server, "colours", 1)
    wait_for(lambda: "MISSING" in server.inspect().stdout, 20)
    scale(server, "colours", 2)
    wait_for(lambda: server.inspect().returncode == 0, 20, lambda: server.inspect().stdout)
    left, right = places(server, "colours")
    assert left.isdisjoint(right)


def test_everything_started_again_from_the_same_folder(start: Start, store: Path) -> None:
    server = start(models={"colours": {}}).wait_until_ready()
    os.kill(server.java(), signal.SIGKILL)
    assert server.process.wait(20) == 1
    again = Server(server.run_dir.parent, store, models={"colours": {}})
    try:
        again.wait_until_ready()
        found = again.inspect()
        assert found.returncode == 0, found.stdout
    finally:
        end_all(again)


def test_the_pods_own_metrics_and_json(start: Start) -> None:
    server = start(models={"colours": {}}).wait_until_ready()
    text = httpx.get(server.url("health", "/metrics"), timeout=5, trust_env=False).text
    workers = plan_of(server)["models"][0]["workers"]
    assert "tscpu_ready 1.0" in text and "tscpu_audit_clean 1.0" in text
    assert f'tscpu_workers_by_verdict{{model="colours",verdict="OK"}} {workers}.0' in text
    found = report(server)
    assert found["clean"] and [row["verdict"] for row in found["workers"]] == ["OK"] * workers
