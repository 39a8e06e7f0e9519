"""What `configs.topology` promises: every machine's CPUs, cores, sockets and NUMA nodes, and CPU lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from configs.errors import MachineError
from configs.topology import HIGHEST_CPU, Cpu, Topology, format_cpu_list, parse_cpu_list, read_topology

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
NAMES = sorted(path.parent.name for path in MACHINES.glob("*/expected.json"))
CPU = "sys/devices/system/cpu"


def make(root: Path, files: dict[str, str], cpuinfo: str | None = None) -> Path:
    """A machine with these files below the CPU folder of sysfs."""
    written = {f"{CPU}/{name}": content for name, content in files.items()}
    for name, content in (written if cpuinfo is None else written | {"proc/cpuinfo": cpuinfo}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def cores(topology: Topology) -> list[int]:
    return [cpu.core for cpu in topology.cpus]


@pytest.mark.parametrize("name", NAMES)
def test_machine(name: str) -> None:
    expected = json.loads((MACHINES / name / "expected.json").read_text())
    topology = read_topology(MACHINES / name)
    if "error" in expected:  # the node is sound, its limits are not
        assert topology.cpus
        return
    allowed = parse_cpu_list(expected["allowed"])
    assert format_cpu_list(topology.online) == expected["online"]
    assert len(topology.physical_cores(allowed)) == expected["physical_cores"]
    assert len(topology.sockets(allowed)) == expected["sockets"]
    assert len(topology.nodes(allowed)) == expected["nodes"]
    assert topology.architecture == expected["architecture"]


def test_at_least_24_machines() -> None:
    assert len(NAMES) >= 24


# --- cores, sockets, nodes ---------------------------------------------------------------------------------------

def test_siblings_far_apart_and_core_ids_with_holes() -> None:
    topology = read_topology(MACHINES / "xeon-4214-quota-8-v2")
    assert topology.by_id[24] == Cpu(id=24, core=0, socket=0, node=0)
    assert topology.by_id[47] == Cpu(id=47, core=23, socket=1, node=1)
    assert [cpu.id for cpu in topology.physical_cores()] == list(range(24))
    assert topology.model == "Intel(R) Xeon(R) Silver 4214 CPU @ 2.20GHz"


def test_siblings_side_by_side() -> None:
    topology = read_topology(MACHINES / "vm-adjacent-8-quota-4")
    assert cores(topology) == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [cpu.id for cpu in topology.physical_cores()] == [0, 2, 4, 6]


def test_several_numa_nodes_a_socket() -> None:
    topology = read_topology(MACHINES / "epyc-7251-bare")
    assert [(topology.by_id[cpu].socket, topology.by_id[cpu].node) for cpu in (0, 7, 8, 15, 16, 31)] == [
        (0, 0), (0, 3), (1, 4), (1, 7), (0, 0), (1, 7)]
    assert topology.nodes((0, 17)) == (0,)
    assert topology.sockets((7, 8)) == (0, 1)


def test_offline_and_sparse_ids() -> None:
    topology = read_topology(MACHINES / "workstation-12-sparse")
    assert topology.online == (0, 2, 3, 4, 5, 8, 10, 11)
    assert cores(topology) == [0, 2, 3, 4, 5, 2, 4, 5]


def test_arm_has_no_name_and_no_smt() -> None:
    topology = read_topology(MACHINES / "neoverse-n1-quota-16")
    assert topology.model == "implementer 0x41, part 0xd0c"
    assert len(topology.physical_cores()) == 32
    assert "asimddp" in topology.flags


def test_p7_second_threads_alone_are_cores_of_their_own() -> None:
    topology = read_topology(MACHINES / "xeon-4214-affinity-40-43")
    assert topology.physical_cores((40, 41, 42, 43)) == tuple(topology.by_id[cpu] for cpu in (40, 41, 42, 43))
    assert topology.nodes((40, 41, 42, 43)) == (1,)


def test_p10_flags_tell_bf16_from_its_absence() -> None:
    assert {"avx512_bf16", "amx_bf16"} <= read_topology(MACHINES / "vm-16-memory-3gib").flags
    assert not {"avx512_bf16", "amx_bf16"} & read_topology(MACHINES / "xeon-4214-quota-8-v1").flags


def test_p10_flags_are_those_that_all_cpus_have(tmp_path: Path) -> None:
    make(tmp_path, {"online": "0-1"}, "processor: 0\nflags: lm avx2 avx512f\n\nprocessor: 1\nflags: lm avx2\n")
    assert read_topology(tmp_path).flags == {"lm", "avx2"}


def test_allowed_cpus_that_are_not_online_are_left_out(tmp_path: Path) -> None:
    assert [cpu.id for cpu in read_topology(make(tmp_path, {"online": "0-1"})).physical_cores((1, 7))] == [1]


# --- what is missing falls through -------------------------------------------------------------------------------

def test_socket_minus_one_is_zero_and_no_numa_is_none() -> None:
    topology = read_topology(MACHINES / "vm-arm-4-no-numa")
    assert {(cpu.socket, cpu.node) for cpu in topology.cpus} == {(0, None)}
    assert topology.nodes() == ()


def test_without_topology_each_cpu_is_a_core(tmp_path: Path) -> None:
    topology = read_topology(make(tmp_path, {"online": "0,2-3"}))
    assert topology.cpus == tuple(Cpu(id=cpu, core=cpu, socket=0, node=None) for cpu in (0, 2, 3))
    assert (topology.model, topology.architecture, topology.flags) == ("unknown", "unknown", frozenset())


def test_core_cpus_list_before_thread_siblings_list(tmp_path: Path) -> None:
    make(tmp_path, {"online": "0-1", "cpu0/topology/core_cpus_list": "0", "cpu1/topology/core_cpus_list": "1",
                    "cpu0/topology/thread_siblings_list": "not looked at"})
    assert cores(read_topology(tmp_path)) == [0, 1]


def test_core_id_where_no_list_is(tmp_path: Path) -> None:
    files = {"online": "0-3"}
    for cpu, (socket, core) in enumerate([(0, 5), (0, 7), (1, 5), (0, 5)]):
        files[f"cpu{cpu}/topology/core_id"] = f"{core}\n"
        files[f"cpu{cpu}/topology/physical_package_id"] = f"{socket}\n"
    assert cores(read_topology(make(tmp_path, files))) == [0, 1, 2, 0]


def test_core_id_minus_one_is_no_core_id(tmp_path: Path) -> None:
    make(tmp_path, {"online": "0-1", "cpu0/topology/core_id": "-1", "cpu1/topology/core_id": "-1"})
    assert cores(read_topology(tmp_path)) == [0, 1]


def test_an_offline_sibling_may_still_be_listed(tmp_path: Path) -> None:
    make(tmp_path, {"online": "1-2", "cpu1/topology/core_cpus_list": "0-1", "cpu2/topology/core_cpus_list": "2-3"})
    assert len(read_topology(tmp_path).physical_cores()) == 2


def test_online_from_folders(tmp_path: Path) -> None:
    make(tmp_path, {"cpu0/topology/core_id": "0", "cpu1/online": "0\n", "cpu10/online": "1\n", "cpufreq/boost": "1"},
         "processor: 9")
    assert read_topology(tmp_path).online == (0, 10)


def test_online_from_cpuinfo(tmp_path: Path) -> None:
    assert read_topology(make(tmp_path, {}, "processor : 0\n\nprocessor : 3\n")).online == (0, 3)


def test_a_node_without_cpus_is_no_error(tmp_path: Path) -> None:
    make(tmp_path, {"online": "0"})
    for node, cpus in ((0, "0\n"), (1, "\n")):
        path = tmp_path / f"sys/devices/system/node/node{node}/cpulist"
        path.parent.mkdir(parents=True)
        path.write_text(cpus)
    assert read_topology(tmp_path).nodes() == (0,)


# --- what is broken raises ---------------------------------------------------------------------------------------

@pytest.mark.parametrize(("name", "content"), [
    ("online", "0-x"), ("online", "3-0"), ("online", "0-999999999999"), ("online", ""),
    ("cpu0/topology/thread_siblings_list", "0,,1"), ("cpu0/topology/thread_siblings_list", ""),
    ("cpu0/topology/thread_siblings_list", "1"),
    ("cpu0/topology/core_id", ""), ("cpu0/topology/core_id", "9" * 5000),
    ("cpu0/topology/physical_package_id", "first"),
], ids=lambda value: value[-24:] or "empty")
def test_broken_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    make(tmp_path, {"online": "0-1", name: content})
    with pytest.raises(MachineError) as caught:
        read_topology(tmp_path)
    assert f"/{CPU}/{name}" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert content[:20] in str(caught.value)


def test_no_machine_at_all(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no CPU found"):
        read_topology(tmp_path)


# --- CPU lists ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "ids"), [
    ("", ()), ("\n", ()), ("0", (0,)), ("0-3,8,10-11", (0, 1, 2, 3, 8, 10, 11)), ("0-1\n", (0, 1)),
    ("5,1,3-4,4", (1, 3, 4, 5)), (" 1, 2 ", (1, 2)), ("7-7", (7,)),
])
def test_parse(text: str, ids: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == ids


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1--2", "3-1", ",", "1,,2", "0-3:2", "0x1", "1 2", "٣", "65536"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="CPU id"):
        parse_cpu_list(text)


@pytest.mark.parametrize(("ids", "text"), [
    ((), ""), ((3,), "3"), ((0, 1), "0-1"), ((11, 8, 0, 1, 2, 3, 10, 10), "0-3,8,10-11")])
def test_format(ids: tuple[int, ...], text: str) -> None:
    assert format_cpu_list(ids) == text


@given(st.sets(st.integers(0, 200)) | st.sets(st.integers(0, HIGHEST_CPU)))
@example(set())
@settings(deadline=None)
def test_parse_undoes_format(ids: set[int]) -> None:
    assert parse_cpu_list(format_cpu_list(ids)) == tuple(sorted(ids))
