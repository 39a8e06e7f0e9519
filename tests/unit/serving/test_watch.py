"""serving/watch.py: when a model is ready, when a worker's end is normal, and when the model is given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from configs.plan import Plan
from serving.client import ModelStatus
from serving.logs import Tail
from serving.watch import FAILED_STARTS_AFTER_READY, ModelWatch

MakeStatus = Callable[..., ModelStatus]


class Scene:
    """A watched model "food" of two workers, and who is alive."""

    def __init__(self, plan: Plan, make_status: MakeStatus) -> None:
        self.dead: set[int] = set()
        self.tail = Tail()
        self.watch = ModelWatch(plan.models[0], self.tail, lambda pid: pid not in self.dead, patience=60.0)
        self.make_status, self.now = make_status, 0.0

    def see(self, *workers: tuple[str, int] | tuple[str, int, str]) -> tuple[str, ...]:
        self.now += 1
        return self.watch.see(self.make_status("food", *workers), self.now)


@pytest.fixture
def scene(make_plan: Callable[..., Plan], make_status: MakeStatus) -> Scene:
    return Scene(make_plan({"food": [(0,), (1,)]}), make_status)


def test_ready_only_with_all_planned_workers(scene: Scene) -> None:
    assert scene.see(("9000", -1, "UNLOADING"), ("9001", -1, "UNLOADING")) == ()
    assert scene.see(("9000", 10), ("9001", -1, "UNLOADING")) == ("food: 1 of 2 workers ready",)
    assert not scene.watch.ready
    assert scene.see(("9000", 10), ("9001", 11)) == ("food: 2 of 2 workers ready",)
    assert scene.watch.ready
    assert scene.see(("9000", 10), ("9001", 11)) == (), "one line for a change, none without"


def test_killed_workers_never_count_however_many(scene: Scene) -> None:
    scene.see(("9000", 10), ("9001", 11))
    for pid in range(12, 40):
        scene.dead.add(pid - 1)
        lines = scene.see(("9000", 10), ("9001", pid - 1, "UNLOADING"))
        assert lines[0] == f"food: worker 9001 (pid {pid - 1}) ended and is started again"
        scene.see(("9000", 10), ("9001", pid))
    assert scene.watch.failure == ""


def test_workers_killed_together_and_again_before_all_are_back(scene: Scene) -> None:
    scene.see(("9000", 10), ("9001", 11))
    for first in range(12, 40, 2):  # one of the two is always away, but each was READY before it was killed
        scene.dead |= {first - 2, first - 1}
        scene.see(("9000", first - 2, "UNLOADING"), ("9001", first - 1, "UNLOADING"))
        scene.see(("9000", first), ("9001", first - 1, "UNLOADING"))
        scene.see(("9000", first, "UNLOADING"), ("9001", first + 1))
    assert scene.watch.failure == ""


def test_three_failed_starts_before_ready(scene: Scene) -> None:
    for pid in (10, 11):
        scene.dead.add(pid)
        assert scene.see(("9000", pid, "UNLOADING")) == (f"food: worker 9000 (pid {pid}) ended before it was ready",)
        assert scene.watch.failure == ""
    scene.see(("9000", 12, "UNLOADING"))
    assert scene.watch.failure == "", "the third still loads"
    scene.see(("9000", 13, "UNLOADING"))
    assert scene.watch.failure.startswith("food cannot start: 3 starts of its workers failed, 0 of 2 workers are ready")


def test_one_end_counts_once_though_the_pid_stays_listed(scene: Scene) -> None:
    scene.dead.add(10)
    for _ in range(10):
        scene.see(("9000", 10, "UNLOADING"))
    assert scene.watch.failed_starts == 1


def test_failed_starts_that_only_the_log_shows(scene: Scene) -> None:
    for _ in range(3):
        scene.tail.feed("2026-12-02T06:47:32,688 [ERROR] W-9000-food_1.0 org.pytorch.serve.wlm.WorkerThread - "
                        "Backend worker error")
        scene.tail.feed("org.pytorch.serve.wlm.WorkerInitializationException: Backend stream closed.")
    scene.see(("9000", -1, "UNLOADING"))
    assert "3 starts" in scene.watch.failure


def test_log_and_pids_do_not_count_the_same_end_twice(scene: Scene) -> None:
    for pid in (10, 11):
        scene.dead.add(pid)
        scene.tail.feed("2026-12-02T06:39:06,281 [WARN ] W-9000-food_1.0 org.pytorch.serve.wlm.BatchAggregator - "
                        "Load model failed: food, error: Worker died.")
        scene.see(("9000", pid, "UNLOADING"))
    assert scene.watch.failed_starts == 2


def test_after_ready_it_takes_more_and_a_ready_phase_forgives(scene: Scene) -> None:
    scene.see(("9000", 10), ("9001", 11))
    pid = 12
    for _ in range(FAILED_STARTS_AFTER_READY - 1):
        scene.dead.add(pid)
        scene.see(("9000", 10), ("9001", pid, "UNLOADING"))
        pid += 1
    assert scene.watch.failure == ""
    scene.see(("9000", 10), ("9001", pid))
    assert scene.watch.failed_starts == 0
    for _ in range(FAILED_STARTS_AFTER_READY):
        pid += 1
        scene.dead.add(pid)
        scene.see(("9000", 10), ("9001", pid, "UNLOADING"))
    assert "1 of 2 workers are ready" in scene.watch.failure


def test_workers_that_stay_away_are_given_up(scene: Scene) -> None:
    scene.see(("9000", 10), ("9001", 11))
    scene.dead.add(11)
    scene.see(("9000", 10), ("9001", 11, "UNLOADING"))
    scene.now += 58
    scene.see(("9000", 10), ("9001", 11, "UNLOADING"))
    assert scene.watch.failure == ""
    scene.see(("9000", 10), ("9001", 11, "UNLOADING"))
    assert scene.watch.failure.startswith("short of workers for 60 s: food: 1 of 2")


def test_scaling_down_is_not_ready_but_no_failure(scene: Scene) -> None:
    scene.see(("9000", 10), ("9001", 11))
    scene.see(("9000", 10))
    scene.now += 1000
    scene.see(("9000", 10))
    assert not scene.watch.ready
    assert scene.watch.failure == ""
    assert "does `models` in config.properties name food with version 1.0?" in scene.watch.shortfall


def test_p21_slow_request_is_named(scene: Scene) -> None:
    scene.see(("9000", 10), ("9001", 11))
    scene.tail.feed("2026-12-02T06:48:23,816 [ERROR] W-9001-food_1.0 org.pytorch.serve.wlm.WorkerThread - "
                    "Backend worker error")
    scene.tail.feed("org.pytorch.serve.wlm.WorkerInitializationException: Backend worker did not respond in given time")
    scene.dead.add(11)
    assert "a request took longer than response_timeout = 20 s" in scene.see(("9000", 10), ("9001", 11, "UNLOADING"))[0]


def test_model_that_is_not_registered(scene: Scene) -> None:
    for _ in range(3):
        assert scene.watch.failure == ""
        scene.watch.see(None, 0.0)
    assert scene.watch.failure == "TorchServe has not registered food: its archive food.mar is missing or broken"
