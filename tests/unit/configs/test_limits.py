"""What `configs.limits` promises: the limits and the allowed CPUs of every machine, and where each was read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import MachineError
from configs.limits import Limits, Throttling, read_limits, read_throttling
from configs.topology import format_cpu_list, read_topology

FIXTURES = Path(__file__).parents[2] / "fixtures"
MACHINES = FIXTURES / "machines"
NAMES = sorted(path.parent.name for path in MACHINES.glob("*/expected.json"))
UNLIMITED = "9223372036854771712"


def mount(controllers: str, root: str = "/", point: str = "") -> str:
    """A line of mountinfo: v1 controllers such as "cpu,cpuacct", or "" for v2."""
    kind, options = ("cgroup", f"rw,{controllers}") if controllers else ("cgroup2", "rw")
    point = point or "/sys/fs/cgroup" + (f"/{controllers}" if controllers else "")
    return f"31 23 0:28 {root} {point} rw,relatime shared:9 - {kind} {kind} {options}\n"


V2 = mount("")
V1 = mount("cpu,cpuacct") + mount("cpuset") + mount("memory") + mount("pids")


def make(root: Path, files: dict[str, str], cgroup: str = "0::/\n", mounts: str = V2,
         affinity: str | None = None) -> Path:
    """A machine with these files below sys/fs/cgroup."""
    written = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts}
    if affinity is not None:
        written["proc/self/status"] = f"Name:\tpython3\nCpus_allowed_list:\t{affinity}\nMems_allowed_list:\t0\n"
    written |= {f"sys/fs/cgroup/{name}": content for name, content in files.items()}
    for name, content in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def limits(root: Path, files: dict[str, str], cgroup: str = "0::/\n", mounts: str = V2, affinity: str | None = None,
           cpus: int = 48) -> Limits:
    """The limits of a machine with these files and so many online CPUs."""
    return read_limits(make(root, files, cgroup, mounts, affinity), range(cpus))


@pytest.mark.parametrize("name", NAMES)
def test_machine(name: str) -> None:
    root = MACHINES / name
    expected = json.loads((root / "expected.json").read_text())
    if "error" in expected:
        with pytest.raises(MachineError) as caught:
            read_limits(root)
        assert expected["error"] in str(caught.value)
        return
    found = read_limits(root, read_topology(root).online)
    assert found.cpus == expected["cpus"]
    assert expected["cpus_source_contains"] in found.cpus_source
    assert format_cpu_list(found.allowed) == expected["allowed"]
    assert expected["allowed_source_contains"] in found.allowed_source
    assert found.cpuset_is_smaller == (expected["allowed"] != expected["online"])
    assert (found.memory, found.pids, found.cgroup) == (expected["memory"], expected["pids"], expected["cgroup"])
    assert (found.cpu_stat is None) == (expected["cpus"] is None)
    sources = found.cpus_source + found.allowed_source + found.memory_source + found.pids_source
    assert str(root) not in sources


def test_machines_are_what_their_script_writes(tmp_path: Path) -> None:
    beside = tmp_path / "laptop-8-bare" / "expected-plans.json"
    beside.parent.mkdir()
    beside.write_text("kept\n")
    subprocess.run([sys.executable, FIXTURES / "make_machines.py", tmp_path], check=True)
    assert beside.read_text() == "kept\n"
    beside.unlink()

    def tree(folder: Path) -> dict[str, str]:
        return {str(path.relative_to(folder)): str(path.readlink()) if path.is_symlink() else path.read_text()
                for path in folder.rglob("*") if path.is_symlink() or path.is_file()}

    committed, written = tree(MACHINES), tree(tmp_path)
    for name in [name for name in written if name.endswith("expected.json")]:
        wanted, there = json.loads(written.pop(name)), json.loads(committed.pop(name))
        assert {key: there.get(key) for key in wanted} == wanted
    assert {name for name in committed if "/proc/" in name or "/sys/" in name} == set(written)
    assert [name for name in written if committed[name] != written[name]] == []


# --- quota -------------------------------------------------------------------------------------------------------

def test_p1_one_cpu_container_on_sixteen(tmp_path: Path) -> None:
    found = limits(tmp_path, {"cpu.max": "100000 100000\n"}, cpus=16)
    assert (found.cpus, found.cpus_source) == (1.0, "cgroup v2 /sys/fs/cgroup/cpu.max = 100000 100000")


def test_p2_limit_4_on_40_cores(tmp_path: Path) -> None:
    found = limits(tmp_path, {"cpu.max": "400000 100000"}, cpus=80)
    assert (found.cpus, len(found.allowed), found.cpuset_is_smaller) == (4.0, 80, False)


@pytest.mark.parametrize(("content", "cpus"), [
    ("765000 100000", 7.65), ("50000 100000", 0.5), ("150000 50000", 3.0), ("max 100000", None), ("max", None),
    ("250000", 2.5)])
def test_p3_v2_fractions_fall_through_max(tmp_path: Path, content: str, cpus: float | None) -> None:
    found = limits(tmp_path, {"cpu.max": content})
    assert found.cpus == cpus
    assert f"/sys/fs/cgroup/cpu.max = {content}" in found.cpus_source
    assert found.cpus_source.startswith("no quota") == (cpus is None)


@pytest.mark.parametrize(("quota", "period", "cpus"), [
    ("765000", "100000", 7.65), ("50000", "100000", 0.5), ("-1", "100000", None), ("-1", "0", None),
    ("200000", None, 2.0)])
def test_p3_v1_fractions_fall_through_minus_one(tmp_path: Path, quota: str, period: str | None,
                                                cpus: float | None) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": quota}
    if period is not None:
        files["cpu,cpuacct/cpu.cfs_period_us"] = period
    found = limits(tmp_path, files, "3:cpu,cpuacct:/\n", V1)
    assert found.cpus == cpus
    assert f"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us = {quota}" in found.cpus_source


def test_p5_shares_and_weights_are_no_limit(tmp_path: Path) -> None:
    assert limits(tmp_path, {"cpu.weight": "20", "cpu.max": "max 100000"}).cpus is None
    assert limits(tmp_path / "v1", {"cpu,cpuacct/cpu.shares": "204"}, "3:cpu,cpuacct:/\n", V1).cpus is None


def test_p6_a_guaranteed_pod_has_a_cpuset_and_a_quota() -> None:
    found = read_limits(MACHINES / "xeon-4214-cpuset-8-static")
    assert (found.cpus, len(found.allowed), found.cpuset_is_smaller) == (8.0, 8, True)
    assert found.cpu_stat == MACHINES / "xeon-4214-cpuset-8-static/sys/fs/cgroup/cpu.stat"


def test_p6_pids_max_is_one_more_limit(tmp_path: Path) -> None:
    found = limits(tmp_path, {"a/pids.max": "max", "pids.max": "512"}, "0::/a\n")
    assert (found.pids, found.pids_source) == (512, "cgroup v2 /sys/fs/cgroup/pids.max = 512")


# --- which group -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("smallest", ["a/b/c", "a/b", "a", ""])
def test_the_smallest_limit_on_the_path_wins(tmp_path: Path, smallest: str) -> None:
    files: dict[str, str] = {}
    for folder in ("a/b/c", "a/b", "a", ""):
        size = 2 if folder == smallest else 8
        files |= {f"{folder}/cpu.max": f"{size}00000 100000", f"{folder}/cpu.stat": "",
                  f"{folder}/memory.max": f"{size}000", f"{folder}/pids.max": f"{size}00"}
    found = limits(tmp_path, files, "0::/a/b/c\n")
    assert (found.cpus, found.memory, found.pids) == (2.0, 2000, 200)
    assert found.cpu_stat == tmp_path / "sys/fs/cgroup" / smallest / "cpu.stat"
    for source in (found.cpus_source, found.memory_source, found.pids_source):
        assert "/".join(filter(None, ("/sys/fs/cgroup", smallest))) + "/" in source


def test_a_level_without_the_file_is_passed_over(tmp_path: Path) -> None:
    assert limits(tmp_path, {"a/b/cgroup.procs": "1", "a/cpu.max": "300000 100000"}, "0::/a/b\n").cpus == 3.0


@pytest.mark.parametrize(("root", "path", "folder"), [
    ("/", "/", ""), ("/", "/a", "/a"), ("/", "/gone/deeper", ""),
    ("/docker/x", "/docker/x", ""), ("/docker/x", "/docker/x/a", "/a"), ("/docker/x", "/docker/xa", ""),
    ("/docker/x", "/", ""), ("/..", "/", ""), ("/..", "/../a", "/a"), ("/../..", "/../a", ""),
    ("/", "/..", ""), ("/", "/../a", ""), ("/..", "/../../a", "")])
def test_paths_are_relative_to_the_root_of_the_mount(tmp_path: Path, root: str, path: str, folder: str) -> None:
    files = {"cpu.max": "900000 100000", "a/cpu.max": "100000 100000"}
    found = limits(tmp_path, files, f"0::{path}\n", mount("", root))
    assert f" /sys/fs/cgroup{folder}/cpu.max" in found.cpus_source


@pytest.mark.parametrize(("root", "path", "folder"), [
    ("/..", "/", "/own"), ("/../..", "/", "/pod/own"), ("/../..", "/..", "/pod"), ("/..", "/sub", "/own/sub"),
    ("/../../..", "/", "")])
def test_a_group_without_a_name_is_the_one_that_lists_the_process(tmp_path: Path, root: str, path: str,
                                                                  folder: str) -> None:
    groups = ("own", "other", "pod", "pod/own", "pod/other", "own/sub", "other/sub")
    files = {f"{group}/cpu.max": "200000 100000" for group in groups}
    files |= {f"{group}/cgroup.procs": "10\n142\n" for group in groups}
    files |= {f"{folder.strip('/')}/cgroup.procs": "10\n42\n"} if folder else {}
    make(tmp_path, files | {"cpu.max": "900000 100000"}, f"0::{path}\n", mount("", root))
    (tmp_path / "proc/self/status").write_text("Tgid:\t42\nPid:\t43\n")
    assert f" /sys/fs/cgroup{folder}/cpu.max" in read_limits(tmp_path, range(4)).cpus_source


def test_host_paths_of_single_controllers(tmp_path: Path) -> None:
    own = "/kubepods/pod1/c1"
    files = {"cpu/cpu.cfs_quota_us": "150000", "memory/memory.limit_in_bytes": "4096"}
    found = limits(tmp_path, files, f"2:memory:{own}\n1:cpu:{own}\n", mount("cpu", own) + mount("memory", own))
    assert (found.cpus, found.memory, found.cgroup) == (1.5, 4096, "v1")


def test_hybrid_takes_each_controller_from_where_it_is(tmp_path: Path) -> None:
    found = limits(tmp_path, {"cpu/a/cpu.cfs_quota_us": "200000", "unified/b/memory.max": "8192"},
                   "1:cpu:/a\n0::/b\n", mount("cpu") + mount("", point="/sys/fs/cgroup/unified"))
    assert (found.cgroup, found.cpus, found.memory) == ("hybrid", 2.0, 8192)
    assert "cgroup v1" in found.cpus_source and "cgroup v2" in found.memory_source


def test_the_mount_below_sys_fs_cgroup_comes_first(tmp_path: Path) -> None:
    make(tmp_path, {"cpu.max": "100000 100000"}, mounts=V2 + mount("", point="/host/cgroup"))
    (tmp_path / "host/cgroup").mkdir(parents=True)
    (tmp_path / "host/cgroup/cpu.max").write_text("300000 100000")
    assert read_limits(tmp_path, range(4)).cpus == 1.0


def test_octal_escapes_of_mountinfo_are_decoded(tmp_path: Path) -> None:
    found = limits(tmp_path, {"my groups/a b/cpu.max": "100000 100000"}, "0::/pod 1/a b\n",
                   mount("", "/pod\\0401", "/sys/fs/cgroup/my\\040groups"))
    assert found.cpus_source == "cgroup v2 /sys/fs/cgroup/my groups/a b/cpu.max = 100000 100000"


def test_a_colon_in_a_path_is_kept(tmp_path: Path) -> None:
    assert limits(tmp_path, {"a:b/cpu.max": "100000 100000"}, "0::/a:b\n").cpus == 1.0


def test_nothing_mounted_is_no_limit(tmp_path: Path) -> None:
    found = read_limits(tmp_path, range(2))
    assert (found.cpus, found.memory, found.pids, found.cgroup, found.cpu_stat) == (None, None, None, "none", None)
    assert (found.allowed, found.allowed_source) == ((0, 1), "all online CPUs 0-1")
    assert found.cpus_source == "no quota: this controller is not mounted"


# --- memory and pids ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("content", [UNLIMITED, "9223372036854710272", "9223372036854775807", "-1"])
def test_v1_memory_without_limit(tmp_path: Path, content: str) -> None:
    found = limits(tmp_path, {"memory/memory.limit_in_bytes": content}, "4:memory:/\n", V1)
    assert found.memory is None
    assert content in found.memory_source


def test_v1_memory_of_a_parent(tmp_path: Path) -> None:
    files = {"memory/a/memory.limit_in_bytes": UNLIMITED, "memory/memory.limit_in_bytes": "3221225472"}
    assert limits(tmp_path, files, "4:memory:/a\n", V1).memory == 3 * 2**30


# --- allowed CPUs ------------------------------------------------------------------------------------------------

def test_p4_affinity_without_quota_says_which_bound_won(tmp_path: Path) -> None:
    found = limits(tmp_path, {"cpu.max": "max 100000", "cpuset.cpus.effective": "0-47"}, affinity="40-43")
    assert (found.cpus, found.allowed) == (None, (40, 41, 42, 43))
    assert found.allowed_source == "affinity /proc/self/status Cpus_allowed_list = 40-43"
    assert found.cpuset_is_smaller


def test_p4_cpuset_wins_over_an_equal_affinity(tmp_path: Path) -> None:
    found = limits(tmp_path, {"cpuset.cpus.effective": "40-43"}, affinity="40-43")
    assert found.allowed_source == "cpuset /sys/fs/cgroup/cpuset.cpus.effective = 40-43"


def test_p4_both_bounds_where_neither_is_enough(tmp_path: Path) -> None:
    found = limits(tmp_path, {"cpuset.cpus.effective": "0-3"}, affinity="2-5")
    assert found.allowed == (2, 3)
    assert "cpuset" in found.allowed_source and " and affinity" in found.allowed_source


def test_p7_a_cpuset_without_cpu_0(tmp_path: Path) -> None:
    files = {"cpuset/cpuset.cpus": "12-15"}
    found = limits(tmp_path, files, "3:cpuset:/\n", V1, affinity="12-15")
    assert found.allowed == (12, 13, 14, 15)
    assert found.allowed_source == "cpuset /sys/fs/cgroup/cpuset/cpuset.cpus = 12-15"


@pytest.mark.parametrize(("files", "allowed"), [
    ({"a/cpuset.cpus.effective": "\n", "cpuset.cpus.effective": "1-2"}, (1, 2)),
    ({"a/cpuset.cpus": "", "cpuset.cpus": "3"}, (3,)),
    ({"a/cpuset.cpus.effective": "", "a/cpuset.cpus": "2"}, (2,)),
    ({"a/cpuset.cpus.effective": "1", "cpuset.cpus.effective": "0-3"}, (1,))],
    ids=["effective-climbs", "cpus-climbs", "other-file", "leaf"])
def test_an_empty_cpuset_climbs(tmp_path: Path, files: dict[str, str], allowed: tuple[int, ...]) -> None:
    assert limits(tmp_path, files | {"a/cgroup.procs": ""}, "0::/a\n").allowed == allowed


def test_affinity_of_cpus_that_are_not_online(tmp_path: Path) -> None:
    found = limits(tmp_path, {}, affinity="0-127", cpus=4)
    assert (found.allowed, found.cpuset_is_smaller) == ((0, 1, 2, 3), False)


@pytest.mark.parametrize("affinity", ["4-7", "100-103"], ids=["outside-the-cpuset", "offline"])
def test_no_allowed_cpu_is_an_error(tmp_path: Path, affinity: str) -> None:
    with pytest.raises(MachineError, match="no CPU is allowed") as caught:
        limits(tmp_path, {"cpuset.cpus.effective": "0-3"}, affinity=affinity)
    assert f"Cpus_allowed_list = {affinity}" in str(caught.value)


# --- broken and unreadable files ---------------------------------------------------------------------------------

@pytest.mark.parametrize(("name", "content"), [
    ("cpu.max", ""), ("cpu.max", "lots 100000"), ("cpu.max", "800000 0"), ("cpu.max", "0 100000"),
    ("cpu.max", "800000 x"), ("cpu.max", "-1 100000"), ("cpu.max", "1.5 1"), ("cpu.max", "9" * 5000),
    ("memory.max", ""), ("memory.max", "16Gi"), ("memory.max", "0"), ("memory.max", "-2"),
    ("pids.max", ""), ("pids.max", "many"), ("cpuset.cpus.effective", "0-"), ("cpuset.cpus.effective", "all")],
    ids=lambda value: value[:22] or "empty")
def test_broken_v2_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(MachineError) as caught:
        limits(tmp_path, {name: content})
    assert f"/sys/fs/cgroup/{name} is broken" in str(caught.value)
    assert f"content '{content[:70]}" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(("quota", "period", "name"), [
    ("", "100000", "cpu.cfs_quota_us"), ("x", "100000", "cpu.cfs_quota_us"), ("0", "100000", "cpu.cfs_quota_us"),
    ("-2", "100000", "cpu.cfs_quota_us"), ("100000", "0", "cpu.cfs_period_us"), ("100000", "", "cpu.cfs_period_us"),
    ("100000", "x", "cpu.cfs_period_us")])
def test_broken_v1_file_is_named(tmp_path: Path, quota: str, period: str, name: str) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": quota, "cpu,cpuacct/cpu.cfs_period_us": period}
    with pytest.raises(MachineError, match=f"/sys/fs/cgroup/cpu,cpuacct/{name} is broken"):
        limits(tmp_path, files, "3:cpu,cpuacct:/\n", V1)


def test_a_broken_level_is_not_hidden_by_a_sound_one(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"/sys/fs/cgroup/cpu.max is broken"):
        limits(tmp_path, {"a/cpu.max": "100000 100000", "cpu.max": ""}, "0::/a\n")


@pytest.mark.parametrize(("cgroup", "mounts", "affinity", "name"), [
    ("0:/\n", V2, "0", "/proc/self/cgroup"), ("0::relative\n", V2, "0", "/proc/self/cgroup"),
    ("0::/\n", "31 23 0:28 / /sys/fs/cgroup rw\n", "0", "/proc/self/mountinfo"),
    ("0::/\n", V2, "", "/proc/self/status"), ("0::/\n", V2, "ff", "/proc/self/status")])
def test_broken_proc_file_is_named(tmp_path: Path, cgroup: str, mounts: str, affinity: str, name: str) -> None:
    with pytest.raises(MachineError, match=f"{name} is broken"):
        limits(tmp_path, {}, cgroup, mounts, affinity)


def test_an_unreadable_file_falls_through_and_says_so(tmp_path: Path) -> None:
    make(tmp_path, {"a/cpu.max/in_the_way": "", "cpu.max": "200000 100000"}, "0::/a\n")
    found = read_limits(tmp_path, range(4))
    assert found.cpus == 2.0
    assert found.cpus_source == ("cgroup v2 /sys/fs/cgroup/cpu.max = 200000 100000; "
                                 "/sys/fs/cgroup/a/cpu.max cannot be read (Is a directory)")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_falls_through(tmp_path: Path) -> None:
    make(tmp_path, {"cpu.max": "200000 100000"})
    (tmp_path / "sys/fs/cgroup/cpu.max").chmod(0)
    found = read_limits(tmp_path, range(4))
    assert found.cpus is None
    assert "/sys/fs/cgroup/cpu.max cannot be read (Permission denied)" in found.cpus_source


# --- throttling --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("content", "expected"), [
    ("nr_periods 31\nnr_throttled 30\nthrottled_time 1519000000\nnr_bursts 0\n", Throttling(31, 30, 1.519)),
    ("usage_usec 7\nnr_periods 40\nnr_throttled 4\nthrottled_usec 250000\nburst_usec 0\n", Throttling(40, 4, 0.25)),
    ("usage_usec 7\nuser_usec 5\n", Throttling(0, 0, 0.0))], ids=["v1", "v2", "v2-without-quota"])
def test_throttling(tmp_path: Path, content: str, expected: Throttling) -> None:
    (tmp_path / "cpu.stat").write_text(content)
    assert read_throttling(tmp_path / "cpu.stat") == expected


def test_throttling_of_a_machine() -> None:
    stat = read_limits(MACHINES / "xeon-4214-quota-8-v1").cpu_stat
    assert stat is not None
    assert read_throttling(stat) == Throttling(periods=1000, throttled_periods=250, throttled_seconds=12.5)


def test_broken_throttling_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods many\n")
    with pytest.raises(MachineError, match="nr_periods many"):
        read_throttling(tmp_path / "cpu.stat")
    with pytest.raises(MachineError, match="cannot read the throttling counters"):
        read_throttling(tmp_path / "missing")


# --- RAM and host name -------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("limit", "ram", "memory"), [
    ("max", "16384 kB", 16 * 2**20), ("8388608", "16384 kB", 8 * 2**20), ("99999999999", "16384 kB", 16 * 2**20),
    ("max", None, None), ("8388608", None, 8 * 2**20)])
def test_ram_is_the_last_bound_of_memory(tmp_path: Path, limit: str, ram: str | None, memory: int | None) -> None:
    make(tmp_path, {"memory.max": limit})
    if ram is not None:
        (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {ram}\nMemFree:  1 kB\n")
    found = read_limits(tmp_path, range(4))
    assert found.memory == memory
    assert ("; RAM /proc/meminfo MemTotal = 16384 kB" in found.memory_source) == (memory == 16 * 2**20)
    assert found.memory_source.startswith("no memory limit: ") == (limit == "max")


@pytest.mark.parametrize("content", ["", " many kB", " 0 kB", " 16384", " 16384 MB"])
def test_broken_ram_is_named(tmp_path: Path, content: str) -> None:
    make(tmp_path, {})
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:{content}\n")
    with pytest.raises(MachineError, match=r"/proc/meminfo is broken"):
        read_limits(tmp_path, range(4))


def test_meminfo_without_a_total_is_no_bound(tmp_path: Path) -> None:
    make(tmp_path, {})
    (tmp_path / "proc/meminfo").write_text("MemFree:  1 kB\n")
    assert read_limits(tmp_path, range(4)).memory is None


def test_the_host_is_the_pods_own_name(tmp_path: Path) -> None:
    make(tmp_path, {})
    assert read_limits(tmp_path, range(4)).host == ""
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("scorer-7d4b9-x2x4z\n")
    assert read_limits(tmp_path, range(4)).host == "scorer-7d4b9-x2x4z"
