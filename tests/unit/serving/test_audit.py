"""serving/audit.py: verdicts from /proc against the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx

from configs.plan import Plan
from configs.topology import Topology, read_topology
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
    assert verdicts(found.rows) == [(10, "OK"), (11, "OK"), (12, "OVERSUBSCRIBED")]
    assert found.rows[2].reason == "shares its core with pid 10 (food)"
    assert "min_worker=2" in found.rows[2].remedy


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
    assert verdicts(found.rows) == [(10, "OK"), (11, "NOT READY"), (12, "OVERSUBSCRIBED")]


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


def test_what_a_worker_reports_counts_only_against_it(proc: Path, tmp_path: Path, make_plan: MakePlan,
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
    assert verdicts(found.rows) == [(10, "TOO MANY THREADS"), (11, "OK"), (12, "OK")]
    assert found.rows[0].reason == "4 of its threads compute; the plan has 1"


def test_threads_that_compute_are_seen_in_proc(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                               make_status: MakeStatus) -> None:
    make_process(10, (0,), (0,), (0,), ticks=900)
    make_process(11, (1,), ticks=900)
    idle = proc / "11" / "task" / "12"
    idle.mkdir()
    (idle / "stat").write_text((proc / "11" / "stat").read_text().replace(" 900 3 ", " 20 3 "))
    (idle / "status").write_text("Cpus_allowed_list:\t1\n")
    found = audit(make_plan({"food": [(0,), (1,)]}), [make_status("food", ("9000", 10), ("9001", 11))], proc)
    assert verdicts(found.rows) == [(10, "TOO MANY THREADS"), (11, "OK")]
    assert [row.computing for row in found.rows] == [3, 1]
    assert "set_num_threads" in found.rows[0].remedy and "kill 10" in found.rows[0].remedy


def machine(name: str) -> Topology:
    return read_topology(Path(__file__).parents[2] / "fixtures" / "machines" / name)


def test_siblings_of_another_workers_core(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                          make_status: MakeStatus) -> None:
    node = machine("vm-adjacent-8-quota-4")
    make_process(10, (0,))
    make_process(11, (1,))
    found = audit(make_plan({"food": [(0,), (2,)]}), [make_status("food", ("9000", 10), ("9001", 11))], proc,
                  topology=node)
    assert verdicts(found.rows) == [(10, "OK"), (11, "SMT SIBLINGS")]
    assert found.rows[1].reason == ("may run on 1; the plan has one of 0 | 2; on 1: a hardware thread of the core that "
                                    "pid 10 (food) computes on")
    assert "kill 11" in found.rows[1].remedy


def test_a_plan_with_siblings_was_made_for_another_machine(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                                           make_status: MakeStatus) -> None:
    for pid in (10, 11):
        make_process(pid, (pid - 10,))
    found = audit(make_plan({"food": [(0,), (1,)]}), [make_status("food", ("9000", 10), ("9001", 11))], proc,
                  topology=machine("vm-adjacent-8-quota-4"))
    assert verdicts(found.rows) == [(10, "SMT SIBLINGS"), (11, "SMT SIBLINGS")]
    assert "start it here again" in found.rows[0].remedy


def test_a_worker_across_sockets(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                 make_status: MakeStatus) -> None:
    node = machine("xeon-4214-quota-8-v1")
    far = next(cpu.id for cpu in node.cpus if cpu.socket == 1)
    make_process(10, (0, 1, 2, far))
    plan = make_plan({"food": [(0, 1, 2, 3)]})
    found = audit(plan, [make_status("food", ("9000", 10))], proc, topology=node)
    assert verdicts(found.rows) == [(10, "ACROSS SOCKETS")]
    assert found.rows[0].reason.endswith("; spans sockets 0, 1")
    unavoidable = audit(make_plan({"food": [(0, 1, 2, far)]}), [make_status("food", ("9000", 10))], proc, topology=node)
    assert unavoidable.clean


def test_a_shared_pool_with_more_threads_than_its_budget(proc: Path, make_plan: MakePlan, make_process: MakeProcess,
                                                         make_status: MakeStatus) -> None:
    pool = (0, 1, 2, 3)
    for pid in range(10, 15):
        make_process(pid, pool)
    plan = make_plan({"food": [pool]}, placement="shared")
    status = make_status("food", *((str(9000 + index), 10 + index) for index in range(5)))
    found = audit(plan, [status], proc)
    assert verdicts(found.rows) == [(10, "OK"), *((pid, "OVERSUBSCRIBED") for pid in range(11, 15))]
    assert found.rows[1].reason == "the pod's workers have 20 threads for a budget of 4"


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
