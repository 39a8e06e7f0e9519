"""serving/audit.py: verdicts from /proc against the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx

from configs.plan import Plan
from serving.audit import WorkerRow, audit
from serving.client import Client, ModelStatus

MakePlan = Callable[..., Plan]
MakeProcess = Callable[..., Path]
MakeStatus = Callable[..., ModelStatus]


def verdicts(rows: tuple[WorkerRow, ...]) -> list[tuple[int | None, str]]:
    return [(row.pid, row.verdict) for row in rows]


def test_every_worker_on_a_slot_of_its_own(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                           make_status: MakeStatus) -> None:
    make_process(10, (2, 3), (2, 3))
    make_process(11, (0, 1))
    found = audit(make_plan({"food": [(0, 1), (2, 3)]}), [make_status("food", ("9000", 10), ("9001", 11))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "OK")]
    assert (found.rows[0].cpus, found.rows[0].wanted, found.rows[0].tasks) == ((2, 3), (2, 3), 2)
    assert found.rows[0].reason == "on 2-3, as planned"
    assert found.clean


def test_worker_on_all_cpus_is_misplaced(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                         make_status: MakeStatus) -> None:
    make_process(10, (0,))
    make_process(11, (0, 1, 2, 3))
    found = audit(make_plan({"food": [(0,), (1,)]}), [make_status("food", ("9000", 10), ("9001", 11))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "MISPLACED")]
    assert found.rows[1].wanted == (1,)
    assert found.rows[1].reason == "may run on 0-3; the plan has one of 0 | 1"
    assert "kill 11" in found.rows[1].remedy
    assert not found.clean


def test_one_thread_elsewhere_misplaces_the_worker(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                                   make_status: MakeStatus) -> None:
    make_process(10, (0,), (0,), (0, 1))
    found = audit(make_plan({"food": [(0,)]}), [make_status("food", ("9000", 10))], proc)
    row = found.rows[0]
    assert (row.verdict, row.cpus, row.threads_differ) == ("MISPLACED", (0, 1), True)
    assert "not all of its threads on the same" in row.reason


def test_threads_pinned_one_by_one_within_the_slot_are_fine(proc: Path, make_plan: MakePlan,
                                                            make_process: MakeProcess,
                                                            make_status: MakeStatus) -> None:
    make_process(10, (0,), (1,))
    row = audit(make_plan({"food": [(0, 1)]}), [make_status("food", ("9000", 10))], proc).rows[0]
    assert (row.verdict, row.threads_differ) == ("OK", True)


def test_worker_on_too_few_cpus_is_misplaced(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                             make_status: MakeStatus) -> None:
    make_process(10, (0,))
    found = audit(make_plan({"food": [(0, 1)]}), [make_status("food", ("9000", 10))], proc)
    assert verdicts(found.rows) == [(10, "MISPLACED")]


def test_shared_slot_while_another_is_free(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                           make_status: MakeStatus) -> None:
    make_process(10, (0,))
    make_process(11, (0,))
    found = audit(make_plan({"food": [(0,), (1,)]}), [make_status("food", ("9000", 10), ("9001", 11))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "MISPLACED")]
    assert found.rows[1].reason == "shares the slot 0 with pid 10, while 1 is free"


def test_shared_slot_while_none_is_free(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                        make_status: MakeStatus) -> None:
    for pid, cpu in ((10, 0), (11, 1), (12, 0)):
        make_process(pid, (cpu,))
    status = make_status("food", ("9000", 10), ("9001", 11), ("9002", 12))
    found = audit(make_plan({"food": [(0,), (1,)]}), [status], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "OK"), (12, "OK")]
    assert "none is free" in found.rows[2].reason


def test_slots_that_coincide_are_held_as_often_as_planned(proc: Path, make_plan: MakePlan,
                                                          make_process: MakeProcess,
                                                          make_status: MakeStatus) -> None:
    for pid in (10, 11, 20):
        make_process(pid, (0,))
    plan = make_plan({"food": [(0,), (0,)], "score": [(0,)]})
    found = audit(plan, [make_status("food", ("9000", 10), ("9001", 11)), make_status("score", ("9002", 20))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "OK"), (20, "OK")]


def test_worker_on_a_slot_of_another_model(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                           make_status: MakeStatus) -> None:
    make_process(10, (0,))
    make_process(20, (0,))
    plan = make_plan({"food": [(0,)], "score": [(1,)]})
    found = audit(plan, [make_status("food", ("9000", 10)), make_status("score", ("9001", 20))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (20, "MISPLACED")]
    assert found.rows[1].reason == "may run on 0; the plan has 1"


def test_shared_placement_wants_workers_within_one_slot(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                                        make_status: MakeStatus) -> None:
    make_process(10, (0, 1, 2, 3))
    make_process(11, (1,))
    make_process(12, (3, 4))
    plan = make_plan({"food": [(0, 1, 2, 3), (4, 5, 6, 7), (4, 5, 6, 7)]}, placement="shared")
    found = audit(plan, [make_status("food", ("9000", 10), ("9001", 11), ("9002", 12))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "OK"), (12, "MISPLACED")]
    assert found.rows[2].reason == "may run on 3-4; the plan has one of 0-3 | 4-7"


def test_loading_and_ended_workers_are_not_ready(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                                 make_status: MakeStatus) -> None:
    make_process(10, (0, 1, 2, 3))
    status = make_status("food", ("9000", 10, "UNLOADING"), ("9001", -1, "UNLOADING"), ("9002", 99))
    found = audit(make_plan({"food": [(0,), (1,), (2,)]}), [status], proc)
    assert verdicts(found.rows) == [(10, "NOT READY"), (None, "NOT READY"), (99, "NOT READY")]
    assert found.rows[2].reason == "no process 99 here"


def test_a_loading_worker_that_has_its_slot_keeps_it_from_being_free(proc: Path, make_plan: MakePlan,
                                                                     make_process: MakeProcess,
                                                                     make_status: MakeStatus) -> None:
    for pid, cpu in ((10, 0), (11, 1), (12, 0)):
        make_process(pid, (cpu,))
    status = make_status("food", ("9000", 10), ("9001", 11, "UNLOADING"), ("9002", 12))
    found = audit(make_plan({"food": [(0,), (1,)]}), [status], proc)
    assert verdicts(found.rows) == [(10, "OK"), (11, "NOT READY"), (12, "OK")]


def test_missing_workers_get_a_row_with_their_slot(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                                   make_status: MakeStatus) -> None:
    make_process(10, (0,))
    found = audit(make_plan({"food": [(0,), (1,)], "score": [(2,)]}), [make_status("food", ("9000", 10))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (None, "MISSING"), (None, "MISSING")]
    assert [row.wanted for row in found.rows] == [(0,), (1,), (2,)]
    assert found.rows[2].reason == "TorchServe does not have this model"


def test_model_outside_the_plan(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                make_status: MakeStatus) -> None:
    make_process(10, (0,))
    make_process(20, (0,))
    found = audit(make_plan({"food": [(0,)]}), [make_status("food", ("9000", 10)),
                                                 make_status("extra", ("9001", 20))], proc)
    assert verdicts(found.rows) == [(10, "OK"), (20, "MISPLACED")]
    assert "the plan has no such model" in found.rows[1].reason


def test_reports_of_workers_are_shown_and_decide_nothing(proc: Path, tmp_path: Path, make_plan: MakePlan,
                                                         make_process: MakeProcess, make_status: MakeStatus) -> None:
    for pid in (10, 11, 12):
        make_process(pid, (pid - 10,))
    reports = tmp_path / "workers"
    reports.mkdir()
    (reports / "10.json").write_text(json.dumps({"pid": 10, "model": "food", "threads": 4, "cpus": [7]}))
    (reports / "11.json").write_text(json.dumps({"pid": 11, "model": "score", "threads": 4}))
    (reports / "12.json").write_text("{")
    found = audit(make_plan({"food": [(0,), (1,), (2,)]}),
                  [make_status("food", ("9000", 10), ("9001", 11), ("9002", 12))], proc, tmp_path)
    assert [row.torch_threads for row in found.rows] == [4, None, None]
    assert found.clean


def test_a_server_is_asked_itself(proc: Path, make_plan: MakePlan, make_process: MakeProcess) -> None:
    make_process(10, (0,))

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/models":
            return httpx.Response(200, json={"models": [{"modelName": "food"}, {"modelName": "gone"}]})
        if request.url.path == "/models/gone":
            return httpx.Response(404, json={"code": 404, "message": "Model not found: gone"})
        return httpx.Response(200, json=[{"modelName": "food", "modelVersion": "1.0", "minWorkers": 1, "maxWorkers": 1,
                                          "workers": [{"id": "9000", "status": "READY", "pid": 10}]}])

    with Client(transport=httpx.MockTransport(handler)) as client:
        assert audit(make_plan({"food": [(0,)]}), client, proc).clean
