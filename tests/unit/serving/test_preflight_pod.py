"""serving/preflight_pod.py with real sockets and real file systems."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from configs.plan import Plan
from configs.settings import Ports, Settings
from serving import preflight_pod as pod
from serving.preflight_problem import Problem

MakePlan = Callable[..., Plan]
MakeProcess = Callable[..., Path]

FIELDS = tuple(Ports.model_fields)
Mount = Callable[[str], Path]


def only(found: list[Problem], severity: str = "error") -> Problem:
    [problem] = found
    assert problem.severity == severity and problem.why and problem.remedy, problem
    return problem


# --- CPUs


def test_p4_slots_within_the_cpuset(make_plan: MakePlan) -> None:
    assert pod.cpus(make_plan({"food": [(40,), (41,)]}), {40, 41, 42}) == []


def test_p4_slots_outside_of_the_cpuset(make_plan: MakePlan) -> None:
    plan = make_plan({"food": [(40,), (41,)], "score": [(42, 43)]})
    first, second = pod.cpus(plan, {40, 42})
    assert first.what.startswith("food, worker 1") and "without 41; allowed are 40,42" in first.why
    assert second.what.startswith("score, worker 0") and "planned 42-43, without 43" in second.why


# --- ports


@pytest.fixture
def free() -> dict[str, int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in FIELDS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return dict(zip(FIELDS, (each.getsockname()[1] for each in sockets), strict=True))


def settings(ports: dict[str, int], **others: object) -> Settings:
    return Settings.model_validate({"ports": ports, **others})


def test_free_ports(free: dict[str, int]) -> None:
    assert pod.ports(settings(free)) == []
    assert pod.ports(settings(free, bind="0.0.0.0")) == []


@pytest.mark.parametrize("field", FIELDS)
def test_a_taken_port_is_named_by_its_field_and_holder(free: dict[str, int], field: str) -> None:
    with socket.create_server(("127.0.0.1", free[field])):
        problem = only(pod.ports(settings(free)))
    assert f"ports.{field}: 127.0.0.1:{free[field]}" in problem.what
    assert f"pid {os.getpid()}: " in problem.why and "serving.yaml" in problem.remedy


def test_every_taken_port_is_found(free: dict[str, int]) -> None:
    with (socket.create_server(("127.0.0.1", free["metrics"])),
          socket.create_server(("0.0.0.0", free["grpc_inference"]))):
        found = pod.ports(settings(free))
    assert [each.what.split(":")[0] for each in found] == ["ports.metrics", "ports.grpc_inference"]


def test_an_ipv6_server_on_all_addresses_holds_ours_too(free: dict[str, int]) -> None:
    with socket.create_server(("::", free["health"]), family=socket.AF_INET6, dualstack_ipv6=True):
        assert f"pid {os.getpid()}" in only(pod.ports(settings(free))).why


def test_p16_a_loopback_holder_is_found_when_all_addresses_are_wanted(free: dict[str, int]) -> None:
    with socket.create_server(("127.0.0.1", free["inference"])):
        assert "0.0.0.0:" in only(pod.ports(settings(free, bind="0.0.0.0"))).what


def test_connections_of_an_earlier_server_do_not_count(free: dict[str, int]) -> None:
    address = ("127.0.0.1", free["inference"])
    with socket.create_server(address) as server:
        client = socket.create_connection(address)
        accepted, _ = server.accept()
        accepted.close()  # first, so that TIME_WAIT stays on this side
        client.close()
    assert pod.ports(settings(free)) == []


def test_an_address_that_is_not_ours(free: dict[str, int]) -> None:
    found = pod.ports(settings(free, bind="192.0.2.1"))
    assert len(found) == 3 and all("no address of this pod" in each.why and "bind" in each.remedy for each in found)


def test_a_holder_that_cannot_be_seen(proc: Path) -> None:
    (proc / "net").mkdir()
    (proc / "net" / "tcp").write_text(
        "  sl  local_address rem_address\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n")
    assert "cannot be seen" in pod.holder(8080, proc)


def test_a_holders_command_line_is_shortened(proc: Path, make_process: MakeProcess) -> None:
    test_a_holder_that_cannot_be_seen(proc)
    folder = make_process(17, (0,), command=["nginx", "-c", "a\nb", "x" * 200])
    (folder / "fd").mkdir()
    (folder / "fd" / "5").symlink_to("socket:[4711]")
    words = pod.holder(8080, proc)
    assert words.startswith("by pid 17: nginx -c a b xxx") and len(words) < 150
    assert "cannot be seen" in pod.holder(8081, proc)


# --- the folder for temporary files


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Real tmpfs mounts, where this process may make them."""
    made: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"mount-{len(made)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no right to mount: {done.stderr.strip()}")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def plan(make_plan: MakePlan) -> Plan:
    return make_plan({"food": [(0,), (1,)]})


def test_a_good_folder(tmp_path: Path, plan: Plan) -> None:
    assert pod.temporary(tmp_path, plan, [(1000, 10)]) == []
    assert pod.temporary(tmp_path, None, []) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path, plan: Plan) -> None:
    assert "No such file" in only(pod.temporary(tmp_path / "tmp", plan, [])).why


def test_a_read_only_folder(mount: Mount, plan: Plan) -> None:
    assert "Read-only" in only(pod.temporary(mount("ro"), plan, [])).why


def test_a_full_folder(mount: Mount, plan: Plan) -> None:
    folder = mount("size=16k")
    (folder / "full").write_bytes(b"x" * 16384)
    assert "No space left" in only(pod.temporary(folder, plan, [])).why


def test_archives_that_do_not_fit(mount: Mount, plan: Plan) -> None:
    folder = mount("size=2m")
    assert pod.temporary(folder, plan, [(900_000, 1), (900_000, 1)]) == []
    problem = only(pod.temporary(folder, plan, [(900_000, 1), (1_500_000, 1)]))
    assert "2.4 MB" in problem.why and "2.1 MB are free" in problem.why


def test_more_files_than_inodes(mount: Mount, plan: Plan) -> None:
    assert "20 files" in only(pod.temporary(mount("nr_inodes=10"), plan, [(1000, 20)])).why


def test_a_socket_path_that_the_kernel_does_not_take(tmp_path: Path, plan: Plan) -> None:
    """At exactly the length where a real bind begins to fail."""
    for length in (107, 108):
        folder = tmp_path / ("x" * (length - len(f"{tmp_path}/") - len("/.ts.sock.9001")))
        folder.mkdir()
        found = pod.temporary(folder, plan, [])
        with socket.socket(socket.AF_UNIX) as one:
            if length == 107:
                one.bind(f"{folder}/.ts.sock.9001")
                assert found == []
            else:
                with pytest.raises(OSError, match="too long"):
                    one.bind(f"{folder}/.ts.sock.9001")
                assert "108 bytes" in only(found).why


def test_a_folder_mounted_noexec_is_a_warning(mount: Mount, plan: Plan) -> None:
    problem = only(pod.temporary(mount("noexec"), plan, []), "warning")
    assert "noexec" in problem.what and "9000–9001" in problem.why


def test_noexec_is_an_error_where_a_workers_port_is_taken(mount: Mount, plan: Plan) -> None:
    folder = mount("noexec")
    with socket.create_server(("127.0.0.1", 9001)):
        problem = only(pod.temporary(folder, plan, []))
    assert "9001 cannot be had" in problem.why and f"pid {os.getpid()}" in problem.why


# --- variables and the key file


def test_p13_each_variable_that_gave_way_is_a_warning() -> None:
    found = pod.variables({}, ["environment: TS_CONFIG_FILE=/x is removed: TorchServe would read that file",
                               "environment: OMP_NUM_THREADS=8 gives way to the plan's 1"])
    assert [each.severity for each in found] == ["warning"] * 2
    assert found[0].what.startswith("TS_CONFIG_FILE=/x is removed") and "TS_CONFIG_FILE" in found[0].remedy
    assert "remove OMP_NUM_THREADS" in found[1].remedy


def test_p13_java_options_that_beat_the_file() -> None:
    assert "vmargs" in only(pod.variables({"_JAVA_OPTIONS": "-Xmx8g"}, []), "warning").what
    assert pod.variables({"_JAVA_OPTIONS": "", "JAVA_TOOL_OPTIONS": "-Xmx8g"}, []) == []


WITH_KEYS = Settings(token_authorization=True)


def test_p17_a_key_file_that_can_be_written(tmp_path: Path) -> None:
    assert pod.key_file(WITH_KEYS, tmp_path) == []
    (tmp_path / "key_file.json").write_text("{}")  # of an earlier start
    assert pod.key_file(WITH_KEYS, tmp_path) == []


def test_p17_without_keys_no_folder_is_asked(tmp_path: Path) -> None:
    assert pod.key_file(Settings(), tmp_path / "nowhere") == []


def test_p17_a_key_file_that_cannot_be_written(tmp_path: Path, mount: Mount) -> None:
    assert "No such file" in only(pod.key_file(WITH_KEYS, tmp_path / "nowhere")).why
    (tmp_path / "key_file.json").mkdir()
    assert "is no file" in only(pod.key_file(WITH_KEYS, tmp_path)).why
    assert "Read-only" in only(pod.key_file(WITH_KEYS, mount("ro"))).why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away, and takes another user's id")
def test_p17_a_key_file_of_somebody_else(tmp_path: Path) -> None:
    file = tmp_path / "key_file.json"
    file.write_text("{}")
    code = ("import os, sys; from pathlib import Path; from configs.settings import Settings\n"
            "from serving.preflight_pod import key_file\n"
            f"os.seteuid(65534); print(key_file(Settings(token_authorization=True), Path({str(tmp_path)!r})))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "belongs to user 0" in done.stdout or "Permission denied" in done.stdout
