"""What `configs.planning` promises: workers, threads and slots for every pod, and a reason for every number."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from made_up import GB, MACHINES, limits, model, plan, plan_of, shapes, slots, topology, why

from configs.errors import MachineError, SettingsError, ToolkitError
from configs.limits import Limits
from configs.plan import Plan, read_plan
from configs.planning import JVM_TASKS, LAUNCHER_WRAPPER_BYTES, WORKER_TASKS, thread_budget
from configs.rendering import vmargs
from configs.slots import pack, sockets
from configs.topology import Topology, format_cpu_list

# Names of the models, and the serving file. A model takes 100 ms an image on one thread.
SITUATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("a", {}),
    "two": ("ab", {}),
    "shares-3-1": ("ab", {"models": {"a": {"share": 3}, "b": {"share": 1}}}),
    "three": ("abc", {}),
    "latency": ("a", {"slo": {"p99_ms": 120}}),
    "strict-latency": ("a", {"slo": {"p99_ms": 90}}),
    "exclusive": ("a", {"placement": "exclusive"}),
    "exclusive-two": ("ab", {"placement": "exclusive"}),
    "exclusive-latency": ("a", {"placement": "exclusive", "slo": {"p99_ms": 120}}),
    "three-workers": ("a", {"models": {"a": {"workers": 3}}}),
    "sixteen-workers": ("a", {"models": {"a": {"workers": 16}}}),
    "torchserve-0-6-0": ("a", {}),
    "ipex": ("a", {}),
}
EXPECTED = {path.parent.name: json.loads(path.read_text()) for path in sorted(MACHINES.glob("*/expected-plans.json"))}
CASES = [(machine, situation) for machine, situations in EXPECTED.items() for situation in situations]
SOUND = [path.parent.name for path in sorted(MACHINES.glob("*/expected.json")) if "broken" not in path.parent.name]
NUMBERS = ("allowed CPUs", "physical cores", "CPU limit", "thread budget", "placement", "memory limit", "pids limit",
           "JVM heap", "JVM processors", "cpu_launcher_enable", "ipex_enable", "spinning", "memory binding")
NUMBERS_OF_A_MODEL = ("workers × threads", "slots", "batch", "response timeout", "startup timeout")


def in_short(decided: Plan) -> dict[str, Any]:
    """A plan as expected-plans.json has it: of the slots, the first four."""
    return {"budget": decided.budget, "placement": decided.placement, "launcher": decided.launcher,
            "models": {each.name: {"workers": each.workers, "threads": each.threads,
                                   "slots": [format_cpu_list(slot.cpus) for slot in each.slots[:4]]}
                       for each in decided.models}}


def planned(machine: str, situation: str) -> Plan:
    names, serving = SITUATIONS[situation]
    version = situation.removeprefix("torchserve-").replace("-", ".") if "torchserve" in situation else "0.12.0"
    runtime = "ipex" if situation == "ipex" else "eager"
    return plan_of(machine, version=version, archives=[model(name, runtime=runtime) for name in names], **serving)


@pytest.mark.parametrize(("machine", "situation"), CASES, ids=[" ".join(case) for case in CASES])
def test_machine(machine: str, situation: str) -> None:
    expected = EXPECTED[machine][situation]
    if "error" in expected:
        with pytest.raises(ToolkitError) as caught:
            planned(machine, situation)
        assert expected["error"] in str(caught.value)
        return
    decided = planned(machine, situation)
    assert in_short(decided) == expected
    assert all(len(each.slots) == each.workers for each in decided.models)


def test_every_machine_has_expected_plans() -> None:
    assert sorted(EXPECTED) == SOUND
    assert all({"one", "two", "shares-3-1", "three", "latency"} <= set(situations) for situations in EXPECTED.values())


@pytest.mark.parametrize("machine", [name for name in SOUND if name != "vm-2-podman-host-paths"])
@pytest.mark.parametrize("situation", ["one", "shares-3-1", "latency"])
def test_every_number_has_a_reason(machine: str, situation: str) -> None:
    decided = planned(machine, situation)
    subjects = [reason.subject for reason in decided.reasons]
    wanted = [*NUMBERS, *(f"{each.name}: {number}" for each in decided.models for number in NUMBERS_OF_A_MODEL)]
    assert [subject for subject in wanted if subjects.count(subject) != 1] == []
    assert [reason for reason in decided.reasons if not reason.value or not reason.why] == []
    assert why(decided, "thread budget").startswith(f"{decided.budget}: ")
    assert why(decided, "JVM heap").startswith(f"{decided.jvm_heap_mb} MB: ")
    assert why(decided, "JVM processors").startswith(f"{decided.jvm_cpus}: ")
    assert why(decided, "cpu_launcher_enable").startswith(f"{decided.launcher}: ".lower())
    assert why(decided, "spinning").startswith("allowed: " if decided.spin else "off: ")
    for each in decided.models:
        assert why(decided, f"{each.name}: workers × threads").startswith(f"{each.workers} × {each.threads}: ")
        assert why(decided, f"{each.name}: response timeout").startswith(f"{each.response_timeout_s} s: ")
        assert why(decided, f"{each.name}: startup timeout").startswith(f"{each.startup_timeout_s} s: ")


# --- the case study ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("version", ["v1", "v2"])
def test_case_study_8_cpus_of_24_cores_are_8_workers_with_a_thread(version: str) -> None:
    decided = plan_of(f"xeon-4214-quota-8-{version}")
    assert shapes(decided) == {"a": "8x1"}
    assert "the node's size does not matter" in why(decided, "thread budget")


def test_case_study_with_a_latency_target_4_workers_with_2_threads() -> None:
    decided = plan_of("xeon-4214-quota-8-v2", slo={"p99_ms": 120})
    assert shapes(decided) == {"a": "4x2"}
    assert "expected 55.0 ms, 100.0 ms on one thread" in why(decided, "a: workers × threads")


def test_case_study_three_workers_use_75_percent() -> None:
    decided = plan_of("xeon-4214-quota-8-v2", archives=[model()], **SITUATIONS["three-workers"][1])
    assert why(decided, "a: workers × threads") == ("3 × 2: the serving file gives workers; warning: 2 of 8 cores stay "
                                                    "idle, 75 % are used")


def test_case_study_two_models_share_8_cpus() -> None:
    decided = plan_of("xeon-4214-quota-8-v2", "ab")
    assert sum(each.workers * each.threads for each in decided.models) == 8


# --- pains of the field ------------------------------------------------------------------------------------------

def test_p1_one_cpu_of_sixteen_is_one_worker() -> None:
    machine = topology(cores=16)
    decided = plan(machine, limits(machine, cpus=1.0))
    assert (shapes(decided), decided.jvm_cpus) == ({"a": "1x1"}, 1)
    assert why(decided, "CPU limit") == "1: cgroup v2 cpu.max = 1.0"


def test_p2_limit_4_on_40_cores() -> None:
    machine = topology(sockets=2, cores=20, smt=2)
    decided = plan(machine, limits(machine, cpus=4.0), "ab")
    assert (decided.budget, shapes(decided)) == (4, {"a": "2x1", "b": "2x1"})


@pytest.mark.parametrize(("cpus", "budget", "words"), [
    (7.65, 7, "floor of 7.65"), (0.5, 1, "warning: the limit of 0.5 CPU is below one thread's worth"),
    (1.5, 1, "floor of 1.5"), (0.9999999999, 1, "the CPU limit"), (1.0, 1, "the CPU limit"),
    (200.0, 24, "24 physical cores bound it before the limit of 200"), (None, 24, "no quota")])
def test_p3_fractions(cpus: float | None, budget: int, words: str) -> None:
    machine = topology(sockets=2, cores=12, smt=2)
    decided = plan(machine, limits(machine, cpus=cpus))
    assert decided.budget == budget == thread_budget(machine, limits(machine, cpus=cpus))
    assert words in why(decided, "thread budget")


def test_p4_a_cpuset_without_quota_is_used_by_its_ids() -> None:
    decided = plan_of("xeon-4214-affinity-40-43")
    assert slots(decided) == [(40,), (41,), (42,), (43,)]
    assert decided.launcher_args == "--core-list 40,41,42,43 --ncores-per-instance 1"
    assert "affinity /proc/self/status Cpus_allowed_list = 40-43" in why(decided, "placement")


def test_p4_ids_are_no_core_ids() -> None:
    """Where siblings are neighbours, core 1 is CPU 2."""
    assert slots(plan_of("vm-adjacent-8-cpuset-4")) == [(2,), (4,)]


def test_p5_shares_mean_nothing_and_the_jvm_counts_as_we_do() -> None:
    decided = plan_of("xeon-4214-docker-shares-v1")
    assert decided.budget == 24
    assert "-XX:ActiveProcessorCount=24" in vmargs(decided)
    assert "-XX:ActiveProcessorCount=8" in vmargs(plan_of("xeon-4214-quota-8-v1"))


@pytest.mark.parametrize(("machine", "serving", "spin"), [
    ("laptop-8-bare", {}, True), ("xeon-4214-cpuset-node-1", {}, True), ("xeon-4214-quota-8-v2", {}, False),
    ("xeon-4214-quota-8-v2", {"placement": "exclusive"}, False), ("xeon-4214-cpuset-8-static", {}, False),
    ("laptop-8-bare", {"placement": "shared"}, False)])
def test_p6_nothing_spins_under_a_quota_or_on_shared_cores(machine: str, serving: dict[str, Any], spin: bool) -> None:
    assert plan_of(machine, **serving).spin is spin


def test_p6_nothing_spins_where_models_take_turns() -> None:
    assert not plan(topology(cores=2), names="abc").spin


def test_p6_pids_max_takes_workers_away() -> None:
    machine = topology(cores=8)
    decided = plan(machine, limits(machine, pids=JVM_TASKS + 5 * WORKER_TASKS))
    assert shapes(decided) == {"a": "4x2"}
    assert "the pids limit allows no more: a worker and what comes with it are 30 tasks" in why(
        decided, "a: workers × threads")


def test_p6_pids_max_without_room_is_an_error() -> None:
    machine = topology(cores=8)
    with pytest.raises(MachineError) as caught:
        plan(machine, limits(machine, pids=100), "ab")
    text = str(caught.value)
    assert "the pids limit leaves no room for one worker of each model" in text
    assert "cgroup v2 pids.max = 100" in text and "100 tasks, and 126 tasks are needed" in text


@pytest.mark.parametrize(("machine", "serving", "words"), [
    ("laptop-8-bare", {}, "off: one NUMA node"),
    ("vm-arm-4-no-numa", {}, "off: no NUMA nodes are known"),
    ("epyc-7251-bare", {}, "by the launcher: with numactl"),
    ("epyc-7251-bare", {"launcher": "off"}, "off: a bound worker's memory is near from its first use on"),
    ("xeon-4214-quota-8-v2", {}, "off: a bound worker's memory is near from its first use on")])
def test_p7_memory_binding_is_said(machine: str, serving: dict[str, Any], words: str) -> None:
    assert why(plan_of(machine, **serving), "memory binding").startswith(words)


def test_p7_the_launchers_probe_needs_cpu_0() -> None:
    machine = topology(sockets=2, cores=4)
    decided = plan(machine, limits(machine, allowed=range(1, 8)))
    assert decided.launcher
    assert why(decided, "memory binding").startswith("off: the launcher tries numactl on CPU 0 and node 0")


@pytest.mark.parametrize("situation", ["one", "latency"])
@pytest.mark.parametrize("machine", [name for name in SOUND if EXPECTED[name]["one"].get("launcher")])
def test_p9_launcher_arguments_give_each_rank_its_slot(machine: str, situation: str) -> None:
    decided = planned(machine, situation)
    match = re.fullmatch(r"--core-list ([0-9]+(?:,[0-9]+)*) --ncores-per-instance ([0-9]+)", decided.launcher_args)
    assert match is not None
    cores, width = sorted(map(int, match[1].split(","))), int(match[2])
    only = decided.models[0]
    assert (width, len(cores)) == (only.threads, only.workers * only.threads)
    # as the launcher does it: sorted, and the rank-th few
    assert {tuple(cores[rank * width:(rank + 1) * width]) for rank in range(only.workers)} == set(slots(decided))


def test_p9_no_launcher_where_it_would_mix_sockets() -> None:
    machine = topology(sockets=2, cores=4, numbering="interleaved")
    assert plan(machine).launcher
    decided = plan(machine, slo={"p99_ms": 120})
    assert slots(decided) == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert not decided.launcher and decided.launcher_args == ""
    assert "would mix sockets" in why(decided, "cpu_launcher_enable")


@pytest.mark.parametrize(("serving", "machine", "version", "words"), [
    ({"launcher": "off"}, topology(), "0.12.0", "the serving file says so"),
    ({}, topology(), "0.5.3", "has no launcher"), ({}, topology(), "0.6.0", "all on the same cores"),
    ({}, topology(numa=False), "0.12.0", "cannot read this machine"),
    ({}, topology(sockets=11, cores=1), "0.12.0", "NUMA nodes, of one digit"),
    ({"placement": "shared"}, topology(), "0.12.0", "must not be pinned")])
def test_p9_launcher_is_off_where_it_would_do_something_else(serving: dict[str, Any], machine: Topology, version: str,
                                                             words: str) -> None:
    decided = plan(machine, version=version, **serving)
    assert not decided.launcher and decided.launcher_args == ""
    assert words in why(decided, "cpu_launcher_enable")


@pytest.mark.parametrize(("version", "arguments"), [
    ("0.6.1", "--use-logical-cores --cores-list 0,1,2,3 --ncores-per-instance 1"),
    ("0.7.1", "--use-logical-cores --cores-list 0,1,2,3 --ncores-per-instance 1"),
    ("0.8.0", "--core-list 0,1,2,3 --ncores-per-instance 1"),
    ("0.12.0", "--core-list 0,1,2,3 --ncores-per-instance 1")])
def test_p9_launcher_arguments_of_each_version(version: str, arguments: str) -> None:
    assert plan(version=version).launcher_args == arguments


@pytest.mark.parametrize(("architecture", "flags", "lacks"), [
    ("aarch64", {"asimd"}, "it is an ARM CPU"), ("x86_64", {"lm", "avx"}, "it needs AVX2"),
    ("x86_64", {"lm", "avx2"}, ""), ("unknown", set(), ""), ("unknown", {"rv64gc"}, "it needs AVX2")])
def test_p10_an_ipex_archive_needs_avx2(architecture: str, flags: set[str], lacks: str) -> None:
    machine = Topology(topology().cpus, "A CPU", architecture, frozenset(flags))
    assert not plan(machine).ipex
    if not lacks:
        assert plan(machine, archives=[model(runtime="ipex")]).ipex
        return
    with pytest.raises(SettingsError) as caught:
        plan(machine, archives=[model("b"), model("a", runtime="ipex")])
    assert lacks in str(caught.value) and "A CPU" in str(caught.value)
    assert caught.value.remedy == "build it again: `tscpu build --runtime eager a`"


def test_p11_two_models_get_disjoint_slots_of_the_pods_own_cpus() -> None:
    decided = plan_of("xeon-4214-cpuset-8-static", "ab")
    assert (slots(decided, "a"), slots(decided, "b")) == ([(2,), (3,)], [(4,), (5,)])
    assert not decided.launcher
    assert "2 models would stand on the same cores" in why(decided, "cpu_launcher_enable")


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_p11_more_models_than_cores_says_so(names: str) -> None:
    decided = plan(topology(cores=2), names=names)
    assert set(shapes(decided).values()) == {"1x1"}
    assert [slots(decided, name) for name in "abc"] == [[(0,)], [(1,)], [(0,)]]
    assert "they take turns" in why(decided, "more models than cores")
    assert "some stand on the same one of 2" in why(decided, "a: slots")


# --- placement ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("cpus", "allowed", "placement", "words"), [
    (None, None, "exclusive", "the whole machine is ours"), (None, range(4), "exclusive", "fewer than the node's"),
    (8.0, range(4), "exclusive", "the quota covers the cpuset"), (4.0, range(4), "exclusive", "covers the cpuset"),
    (3.9, range(4), "shared", "a pool of several pods"), (8.0, None, "shared", "a quota without a cpuset"),
    (64.0, None, "shared", "a quota without a cpuset")])
def test_placement(cpus: float | None, allowed: range | None, placement: str, words: str) -> None:
    machine = topology(sockets=2, cores=4)
    decided = plan(machine, limits(machine, cpus=cpus, allowed=allowed))
    assert decided.placement == placement
    assert words in why(decided, "placement")


def test_the_users_placement_wins() -> None:
    machine = topology()
    for placement in ("exclusive", "shared"):
        decided = plan(machine, limits(machine, cpus=2.0), placement=placement)
        assert (decided.placement, why(decided, "placement")) == (placement, f"{placement}: the serving file says so")


def test_exclusive_under_a_quota_takes_only_the_budget_of_one_socket() -> None:
    machine = topology(sockets=2, cores=12, smt=2)
    decided = plan(machine, limits(machine, cpus=8.0), "abc", placement="exclusive")
    taken = sorted(cpu for name in "abc" for slot in slots(decided, name) for cpu in slot)
    assert taken == list(range(8))


def test_exclusive_under_a_quota_takes_the_socket_that_has_enough() -> None:
    machine = topology(sockets=2, cores=8)
    decided = plan(machine, limits(machine, cpus=6.0, allowed=[0, 1, *range(8, 16)]), placement="exclusive")
    assert slots(decided) == [(cpu,) for cpu in range(8, 14)]


def test_more_models_than_quota_take_turns_on_the_budget_s_cores() -> None:
    machine = topology(cores=8)
    decided = plan(machine, limits(machine, cpus=2.0), "abc", placement="exclusive")
    assert [slots(decided, name) for name in "abc"] == [[(0,)], [(1,)], [(0,)]]


def test_small_numa_nodes_one_node_first_then_one_socket() -> None:
    assert slots(plan_of("epyc-7251-bare", slo={"p99_ms": 120})) == [(cpu, cpu + 1) for cpu in range(0, 16, 2)]
    decided = plan_of("epyc-7251-bare", slo={"p99_ms": 90})
    assert [(slot.cpus, slot.socket, slot.node) for slot in decided.models[0].slots] == [
        ((0, 1, 2, 3), 0, None), ((4, 5, 6, 7), 0, None), ((8, 9, 10, 11), 1, None), ((12, 13, 14, 15), 1, None)]


def test_sockets_of_one_core_are_a_hypervisors_numbering() -> None:
    machine = topology(sockets=8, cores=1)
    one_node = Topology(tuple(type(cpu)(cpu.id, cpu.core, cpu.socket, 0) for cpu in machine.cpus), "", "x86_64",
                        machine.flags)
    assert slots(plan(one_node, slo={"p99_ms": 120})) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    shared = plan(one_node, limits(one_node, cpus=4.0))
    assert set(slots(shared)) == {tuple(range(8))}


def test_shared_workers_go_where_the_fewest_threads_are() -> None:
    machine = topology(sockets=2, cores=8, smt=2)
    decided = plan(machine, limits(machine, cpus=8.0), slo={"p99_ms": 400},
                   archives=[model("a", inference_ms=400), model("b", inference_ms=50)])
    assert shapes(decided) == {"a": "1x4", "b": "4x1"}
    assert {slot.socket for slot in decided.model("a").slots} == {0}
    assert {slot.socket for slot in decided.model("b").slots} == {1}


def test_pods_of_one_worker_do_not_all_take_the_first_socket() -> None:
    machine = topology(sockets=2, cores=12, smt=2)
    chosen = {plan(machine, limits(machine, cpus=1.0, host=f"scorer-{n}")).models[0].slots[0].socket for n in range(16)}
    assert chosen == {0, 1}


# --- workers and threads -----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("cores", "p99_ms", "shape"), [
    (8, 1000, "8x1"), (8, 120, "4x2"), (8, 90, "2x4"), (8, 50, "1x8"), (7, 120, "3x2"), (7, 90, "2x3"),
    (7, 60, "1x7"), (3, 120, "1x3"), (3, 90, "1x3"), (5, 120, "2x2"), (9, 120, "3x3"), (2, 120, "1x2"), (1, 120, "1x1"),
    (12, 70, "3x4"), (12, 60, "2x6"), (11, 120, "5x2"), (13, 90, "4x3"), (16, 10, "1x16")])
def test_latency_takes_the_narrowest_width_that_wastes_little(cores: int, p99_ms: float, shape: str) -> None:
    decided = plan(topology(cores=cores), slo={"p99_ms": p99_ms})
    assert shapes(decided) == {"a": shape}
    text = why(decided, "a: workers × threads")
    used = decided.models[0].workers * decided.models[0].threads
    assert ("stay idle" in text) == (used < cores)
    if used < cores:
        assert f"{cores - used} of {cores} cores stay idle, {100 * used / cores:.0f} % are used" in text
    assert used >= 0.75 * cores


def test_a_latency_target_out_of_reach_is_said() -> None:
    assert "warning: even 4 threads do not keep an inference within half of the p99 of 10 ms" in why(
        plan(slo={"p99_ms": 10}), "a: workers × threads")


def test_a_latency_target_never_makes_a_worker_span_sockets() -> None:
    decided = plan(topology(sockets=2, cores=4), slo={"p99_ms": 10})
    assert slots(decided) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert "a wider worker would span two sockets" in why(decided, "a: workers × threads")


def test_models_that_do_not_fit_the_sockets_together_become_narrower() -> None:
    """2 × 9 and 1 × 6 threads are 24, and do not fit into 2 × 12."""
    decided = plan(topology(sockets=2, cores=12), archives=[model("a"), model("b", inference_ms=90)],
                   slo={"p99_ms": 40.2}, models={"a": {"share": 3}, "b": {"share": 1}})
    assert shapes(decided) == {"a": "3x6", "b": "1x6"}
    assert "a wider worker would span two sockets" in why(decided, "a: workers × threads")
    assert all(len({cpu // 12 for cpu in slot}) == 1 for name in "ab" for slot in slots(decided, name))


@pytest.mark.parametrize(("memory", "shape"), [
    (20 * GB, "8x1"), (8 * GB, "4x2"), (5 * GB, "2x4"), (3 * GB, "1x8")])
def test_memory_takes_workers_away_and_their_threads_go_to_the_others(memory: int, shape: str) -> None:
    machine = topology(cores=8)
    decided = plan(machine, limits(machine, memory=memory))
    assert shapes(decided) == {"a": shape}
    assert ("the memory limit allows no more" in why(decided, "a: workers × threads")) == (shape != "8x1")


def test_memory_for_two_workers_only() -> None:
    assert shapes(plan_of("vm-16-memory-3gib")) == {"a": "2x4"}


def test_the_launchers_wrapper_takes_memory_too() -> None:
    machine = topology(cores=2)
    memory = 256 * 2**20 + 400_000_000 + 2 * GB + LAUNCHER_WRAPPER_BYTES
    assert shapes(plan(machine, limits(machine, memory=memory))) == {"a": "1x2"}
    assert shapes(plan(machine, limits(machine, memory=memory), launcher="off")) == {"a": "2x1"}


def test_no_memory_for_one_worker_of_each_model() -> None:
    machine = topology()
    with pytest.raises(MachineError) as caught:
        plan(machine, limits(machine, memory=2 * GB), "ab")
    assert caught.value.where == f"cgroup v2 memory.max = {2 * GB}"
    assert "1.86 GiB, and 2.49 GiB are needed" in caught.value.why


def test_without_a_memory_limit_there_is_nothing_to_cap() -> None:
    assert shapes(plan(archives=[model(resident=1000 * GB)])) == {"a": "4x1"}


@pytest.mark.parametrize("memory", [4 << 30, (4 << 30) - 1])
def test_the_heap_is_smaller_where_memory_is_small(memory: int) -> None:
    machine = topology()
    assert plan(machine, limits(machine, memory=memory)).jvm_heap_mb == (512 if memory == 4 << 30 else 256)


# --- the user's own word -----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("own", "shape"), [
    ({"workers": 2}, "2x4"), ({"workers": 3}, "3x2"), ({"threads": 2}, "4x2"), ({"threads": 3}, "2x3"),
    ({"workers": 2, "threads": 1}, "2x1"), ({"workers": 8}, "8x1"), ({"threads": 8}, "1x8"),
    ({"workers": 1, "threads": 1}, "1x1"), ({"workers": 5}, "5x1")])
def test_the_users_own_workers_and_threads_win(own: dict[str, int], shape: str) -> None:
    decided = plan(topology(cores=8), slo={"p99_ms": 120}, models={"a": own})
    assert shapes(decided) == {"a": shape}
    assert "the serving file gives " + " and ".join(own) in why(decided, "a: workers × threads")


def test_idle_cores_by_the_users_word_are_said() -> None:
    decided = plan(topology(cores=8), models={"a": {"workers": 2, "threads": 3}})
    assert why(decided, "idle cores") == ("2: warning: the serving file gives all workers and threads, 75 % of the "
                                          "budget of 8")


def test_the_users_workers_come_before_shares() -> None:
    decided = plan(topology(cores=8), names="abc", models={"a": {"workers": 5}, "b": {"share": 2}})
    assert shapes(decided) == {"a": "5x1", "b": "2x1", "c": "1x1"}
    decided = plan(topology(cores=8), names="ab", models={"a": {"workers": 2, "threads": 1}})
    assert shapes(decided) == {"a": "2x1", "b": "6x1"}
    assert why(decided, "a: cores") == "2: the serving file gives both workers and threads"


@pytest.mark.parametrize(("own", "field"), [
    ({"a": {"workers": 9}}, "models.a.workers = 9"), ({"a": {"threads": 9}}, "models.a.threads = 9"),
    ({"a": {"workers": 3, "threads": 3}}, "models.a.workers = 3"),
    ({"a": {"threads": 4, "workers": 3}}, "models.a.threads = 4"), ({"a": {"workers": 8}}, "models.a.workers = 8"),
    ({"b": {"workers": 5}, "a": {"workers": 4}}, "models.b.workers = 5")])
def test_too_many_by_the_users_word_names_the_field(own: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        plan(topology(cores=8), names="ab", models=own)
    assert caught.value.where == field
    assert "the pod's budget is 8 threads" in caught.value.why
    assert "workers × threads ≤ " in caught.value.remedy


def test_the_users_workers_that_memory_cannot_hold_name_the_field() -> None:
    machine = topology(cores=8)
    with pytest.raises(SettingsError) as caught:
        plan(machine, limits(machine, memory=4 * GB), "ab", models={"a": {"workers": 4}})
    assert caught.value.where == "models.a.workers = 4"
    assert f"memory.max = {4 * GB}" in caught.value.why


def test_memory_takes_workers_from_those_that_nobody_gave() -> None:
    machine = topology(cores=8)
    decided = plan(machine, limits(machine, memory=7 * GB), "ab", models={"a": {"workers": 4}})
    assert shapes(decided) == {"a": "4x1", "b": "2x2"}


def test_a_worker_wider_than_a_socket_spans_two_if_the_user_says_so() -> None:
    machine = topology(sockets=2, cores=4)
    decided = plan(machine, models={"a": {"threads": 6}})
    assert slots(decided) == [(0, 1, 2, 3, 4, 5)]
    assert why(decided, "a: slot 0") == "spans sockets 0, 1: warning: no socket has 6 cores for it"
    shared = plan(machine, limits(machine, cpus=8.0), models={"a": {"threads": 6}})
    assert slots(shared) == [tuple(range(8))]


def test_one_worker_of_two_sockets_stays_on_one() -> None:
    decided = plan(topology(sockets=2, cores=4), models={"a": {"workers": 1}})
    assert slots(decided) == [(0, 1, 2, 3)]
    assert "4 of 8 cores stay idle" in why(decided, "a: workers × threads")


# --- timeouts ----------------------------------------------------------------------------------------------------

def test_timeouts_come_from_the_largest_batch_and_the_load_time() -> None:
    decided = plan(archives=[model(batch_size=8, load_seconds=30.0)])
    only = decided.model("a")
    assert (only.response_timeout_s, only.startup_timeout_s) == (40, 120)
    assert "50 × 800 ms for the largest batch (measured when the archive was built)" in why(
        decided, "a: response timeout")
    small = plan(archives=[model(inference_ms=1.0, load_seconds=1.0, measured=False)])
    assert (small.model("a").response_timeout_s, small.model("a").startup_timeout_s) == (10, 60)
    assert "assumed" in why(small, "a: response timeout") and "assumed" in why(small, "a: startup timeout")


def test_models_that_take_turns_load_slowly() -> None:
    decided = plan(topology(cores=1), names="abc")
    assert decided.model("a").startup_timeout_s == 240
    machine = topology(cores=1)
    assert plan(machine, limits(machine, cpus=0.5)).model("a").startup_timeout_s == 160


def test_the_users_own_timeouts_win() -> None:
    decided = plan(models={"a": {"response_timeout_s": 3, "startup_timeout_s": 7}})
    assert (decided.model("a").response_timeout_s, decided.model("a").startup_timeout_s) == (3, 7)
    assert why(decided, "a: response timeout") == "3 s: the serving file says so"


# --- laws --------------------------------------------------------------------------------------------------------

FAST = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NAMES = "abcde"
Pod = tuple[Topology, Limits]
Serving = dict[str, Any]


@st.composite
def machines(draw: st.DrawFn) -> tuple[Topology, tuple[int, ...]]:
    """A machine, and the CPUs of it that are allowed."""
    machine = topology(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 6)),
                       draw(st.integers(1, 2)), draw(st.sampled_from(["far", "near", "interleaved"])),
                       draw(st.booleans()))
    allowed = machine.online
    if draw(st.booleans()):
        allowed = tuple(sorted(draw(st.sets(st.sampled_from(machine.online), min_size=1))))
    return machine, allowed


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    machine, allowed = draw(machines())
    memory = draw(st.none() | st.integers(1, 40).map(lambda count: count * GB))
    return machine, limits(machine, draw(st.none() | st.floats(0.05, 40)), allowed, memory,
                           draw(st.none() | st.integers(60, 1200)), draw(st.sampled_from(["", "scorer-0", "scorer-1"])))


@st.composite
def servings(draw: st.DrawFn) -> Serving:
    """Models and a serving file."""
    names = NAMES[:draw(st.integers(1, 5))]
    own = {name: {"share": draw(st.sampled_from([0.5, 1, 1, 2, 7]))} for name in names}
    if draw(st.integers(0, 3)) == 0:
        own[names[0]] |= draw(st.fixed_dictionaries({}, optional={"workers": st.integers(1, 8),
                                                                  "threads": st.integers(1, 8)}))
    archives = [model(name, draw(st.integers(1, 3)) * GB // 2, draw(st.sampled_from([5.0, 40.0, 100.0, 700.0])))
                for name in names]
    serving: Serving = {"archives": archives, "models": own}
    if draw(st.booleans()):
        serving["slo"] = {"p99_ms": draw(st.sampled_from([20.0, 90.0, 130.0, 400.0]))}
    serving["placement"] = draw(st.sampled_from(["auto", "auto", "exclusive", "shared"]))
    return serving


def made(machine: Topology, bounds: Limits, serving: Serving) -> Plan:
    """The plan, where there is one."""
    try:
        return plan(machine, bounds, **serving)
    except ToolkitError:
        assume(False)
        raise


@FAST
@given(pods(), servings())
def test_law_workers_times_threads_stay_within_the_budget(pod: Pod, serving: Serving) -> None:
    decided = made(*pod, serving)
    total = sum(each.workers * each.threads for each in decided.models)
    assert total <= max(decided.budget, len(decided.models))
    assert 1 <= decided.budget <= len(pod[0].physical_cores(pod[1].allowed))
    assert pod[1].cpus is None or decided.budget <= max(1, pod[1].cpus)
    assert all(each.workers >= 1 and each.threads >= 1 and len(each.slots) == each.workers for each in decided.models)
    assert not decided.spin or pod[1].cpus is None


@FAST
@given(pods(), servings())
def test_law_slots_lie_within_the_allowed_cpus_and_do_not_overlap(pod: Pod, serving: Serving) -> None:
    machine, bounds = pod
    decided = made(machine, bounds, serving)
    placed = [(each, slot) for each in decided.models for slot in each.slots]
    assert all(set(slot.cpus) <= set(bounds.allowed) for _, slot in placed)
    assert all(slot.socket == machine.by_id[slot.cpus[0]].socket for _, slot in placed)
    nodes = [({machine.by_id[cpu].node for cpu in slot.cpus}, slot.node) for _, slot in placed]
    assert all(touched == {node} or (node is None and len(touched) > 1) for touched, node in nodes)
    if decided.placement != "exclusive":
        return
    assert all(len(slot.cpus) == each.threads for each, slot in placed)
    assert all(len({machine.by_id[cpu].core for cpu in slot.cpus}) == len(slot.cpus) for _, slot in placed)
    cores = [machine.by_id[cpu].core for _, slot in placed for cpu in slot.cpus]
    if len(decided.models) <= decided.budget:
        assert len(set(cores)) == len(cores)
    assert len(set(cores)) <= decided.budget


@FAST
@given(pods(), servings())
def test_law_no_slot_spans_sockets_unless_it_must(pod: Pod, serving: Serving) -> None:
    machine, bounds = pod
    decided = made(machine, bounds, serving)
    groups = sockets(machine.physical_cores(bounds.allowed))
    group_of = {core.core: index for index, group in enumerate(groups) for core in group}
    widths = sorted((each.threads for each in decided.models for _ in each.slots), reverse=True)
    for each in decided.models:
        own = serving["models"][each.name]
        for slot in each.slots:
            if len({group_of[machine.by_id[cpu].core] for cpu in slot.cpus}) > 1:
                assert "threads" in own or any("threads" in other for other in serving["models"].values())
                assert pack([width for width in widths if width > 1], [len(group) for group in groups]) is None


@FAST
@given(machines(), servings(), st.floats(0.05, 30), st.floats(0, 10))
def test_law_a_higher_limit_takes_nothing_away(machine: tuple[Topology, tuple[int, ...]], serving: Serving,
                                               cpus: float, more: float) -> None:
    before = made(machine[0], limits(machine[0], cpus, machine[1]), serving)
    after = made(machine[0], limits(machine[0], cpus + more, machine[1]), serving)
    assert before.budget <= after.budget
    used = [[each.workers * each.threads for each in decided.models] for decided in (before, after)]
    assert sum(used[0]) <= sum(used[1])


@FAST
@given(pods(), servings())
def test_law_memory_and_pids_suffice(pod: Pod, serving: Serving) -> None:
    machine, bounds = pod
    decided = made(machine, bounds, serving)
    if bounds.memory is not None:
        resident = sum(each.workers * each.resident_bytes for each in decided.models)
        assert resident + decided.jvm_heap_mb * 2**20 + 400_000_000 <= bounds.memory
    if bounds.pids is not None:
        tasks = sum(each.workers * (WORKER_TASKS + each.threads - 1) for each in decided.models)
        assert JVM_TASKS + tasks <= bounds.pids


@FAST
@given(pods(), servings())
def test_law_a_launched_worker_stands_where_the_plan_says(pod: Pod, serving: Serving) -> None:
    decided = made(*pod, serving)
    if decided.launcher:
        words = decided.launcher_args.split(" ")
        cores, width = sorted(map(int, words[1].split(","))), int(words[3])
        assert {tuple(cores[i:i + width]) for i in range(0, len(cores), width)} == set(slots(decided, NAMES[0]))


@settings(FAST, max_examples=25)
@given(pods(), servings())
def test_law_a_plan_survives_json(tmp_path_factory: pytest.TempPathFactory, pod: Pod,
                                  serving: Serving) -> None:
    decided = made(*pod, serving)
    path: Path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps(decided.to_dict()))
    assert read_plan(path) == decided


def test_planning_needs_no_torch() -> None:
    """It runs in milliseconds before the JVM starts."""
    code = ("import sys, configs.planning, configs.rendering, configs.lint\n"
            "sys.exit(len({'torch', 'numpy', 'PIL'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], cwd=MACHINES.parents[2], check=False).returncode == 0
