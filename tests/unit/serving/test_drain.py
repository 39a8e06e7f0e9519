"""serving/drain.py: what counts as work in hand. The tables are as the kernel writes them."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.plan import Plan
from serving.client import ModelStatus
from serving.drain import RECVFROM, Work, settle_seconds

MakeProcess = Callable[..., Path]
MakeStatus = Callable[..., ModelStatus]
IN_RECV = "45 0x4 0x7fd351c702f0 0x1 0x0 0x0 0x0 0x7fff1d878310 0x7fd45a328974\n"
UNIX = """Num       RefCount Protocol Flags    Type St Inode Path
00000000a61fd51d: 00000002 00000000 00010000 0001 01  7785 /a tmp/.ts.sock.9000
00000000cd851741: 00000003 00000000 00000000 0001 03  7792 /a tmp/.ts.sock.9000
0000000056a5c9a4: 00000003 00000000 00000000 0001 03  7795
"""
TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def connection(port: int, state: str = "01", sending: int = 0, receiving: int = 0, inode: int = 1) -> str:
    here, there = f"0000000000000000FFFF00000100007F:{port:04X}", "0000000000000000FFFF00000100007F:88AE"
    return (f"   2: {here} {there} {state} {sending:08X}:{receiving:08X} 02:000AFC1A 00000000     0        0 {inode} "
            "2 00000000b8f187bf 20 4 30 10\n")


@pytest.fixture
def worker(proc: Path, make_process: MakeProcess) -> Path:
    """Worker 9000, pid 10, waiting for its next request."""
    folder = make_process(10, (0,))
    (folder / "syscall").write_text(IN_RECV)
    (folder / "fd").mkdir()
    (folder / "fd" / "4").symlink_to("socket:[7792]")
    (proc / "net").mkdir()
    (proc / "net" / "unix").write_text(UNIX)
    (proc / "net" / "tcp6").write_text(TCP + connection(8080, "0A"))
    return folder


@pytest.fixture
def status(make_status: MakeStatus) -> ModelStatus:
    return make_status("food", ("9000", 10))


def test_worker_that_waits_on_its_own_socket_is_idle(proc: Path, worker: Path, status: ModelStatus) -> None:
    assert Work(8080, proc, "x86_64").in_hand([status]) == ""


@pytest.mark.parametrize("call", ["running\n", "230 0x1 0x1 0x7fff7934ce70 0x0 0x0 0x0 0x7fff7934ce30 0x7fc541\n"],
                         ids=["computes", "sleeps"])
def test_worker_that_does_anything_else_is_at_work(proc: Path, worker: Path, status: ModelStatus, call: str) -> None:
    (worker / "syscall").write_text(call)
    assert Work(8080, proc, "x86_64").in_hand([status]) == "1 workers at work"


def test_worker_that_waits_for_another_server_is_at_work(proc: Path, worker: Path, status: ModelStatus) -> None:
    (worker / "fd" / "4").unlink()
    (worker / "fd" / "4").symlink_to("socket:[7795]")
    assert Work(8080, proc, "x86_64").in_hand([status]) == "1 workers at work"


def test_worker_on_tcp(proc: Path, worker: Path, status: ModelStatus) -> None:
    (proc / "net" / "unix").write_text(UNIX.splitlines()[0])
    (proc / "net" / "tcp").write_text(TCP + connection(9000, inode=7792))
    assert Work(8080, proc, "x86_64").in_hand([status]) == ""


def test_queue_counts(proc: Path, worker: Path, make_status: MakeStatus) -> None:
    work = Work(8080, proc, "x86_64")
    assert work.in_hand([make_status("food", ("9000", 10), pending=3)]) == "3 requests in the queues"


@pytest.mark.parametrize(("line", "counts"), [
    (connection(8080), False), (connection(8080, sending=1), True), (connection(8080, receiving=7), True),
    (connection(8081, sending=1), False), (connection(8080, "06", sending=1), False),
    (connection(8080, "0A", receiving=2), True)],
    ids=["idle", "answer on its way", "request unread", "another port", "closed long ago", "not accepted yet"])
def test_connections_count_while_bytes_are_on_their_way(proc: Path, worker: Path, status: ModelStatus, line: str,
                                                        counts: bool) -> None:
    (proc / "net" / "tcp6").write_text(TCP + line)
    assert Work(8080, proc, "x86_64").in_hand([status]) == \
        ("1 connections with bytes to read or send" if counts else "")


def test_loading_and_ended_workers_hold_no_request(proc: Path, worker: Path, make_status: MakeStatus) -> None:
    (worker / "syscall").write_text("running\n")
    status = make_status("food", ("9000", 10, "UNLOADING"), ("9001", 99))
    assert Work(8080, proc, "x86_64").in_hand([status]) == ""


def test_without_the_kernels_word_cpu_time_decides(proc: Path, worker: Path, status: ModelStatus,
                                                   make_process: MakeProcess) -> None:
    (worker / "syscall").unlink()
    work = Work(8080, proc, "x86_64")
    assert work.in_hand([status]) == ""
    stat = (worker / "stat").read_text()
    (worker / "stat").write_text(stat.replace(" 7 3 0 0 20 ", " 9 3 0 0 20 "))
    assert work.in_hand([status]) == "1 workers at work"
    assert work.in_hand([status]) == ""
    (worker / "task" / "10" / "stat").write_text(stat.replace(" S ", " R "))
    assert work.in_hand([status]) == "1 workers at work"


def test_unknown_architecture_falls_back(proc: Path, worker: Path, status: ModelStatus) -> None:
    (worker / "syscall").write_text("running\n")
    assert Work(8080, proc, "riscv64").in_hand([status]) == ""


def test_settling_takes_longer_than_a_batch_is_collected(make_plan: Callable[..., Plan]) -> None:
    assert settle_seconds(make_plan({"food": [(0,)]}, max_batch_delay_ms=300)) == pytest.approx(0.8)


@pytest.mark.skipif(platform.machine() not in RECVFROM, reason="recv() has no known number on this architecture")
def test_the_real_kernel_tells_waiting_from_working(tmp_path: Path, make_status: MakeStatus) -> None:
    """A forked process serves a Unix socket as a worker does; its id is the number in the socket's name."""
    path = tmp_path / ".ts.sock.9123"
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as client:
        listening.bind(str(path))
        listening.listen()
        client.connect(str(path))
        serving, _ = listening.accept()
        pid = os.fork()
        if pid == 0:
            client.close()
            while serving.recv(1):
                time.sleep(0.4)
                serving.sendall(b"k")
            os._exit(0)
        serving.close()
        work, status = Work(1), make_status("food", ("9123", pid))
        deadline = time.monotonic() + 3
        while work.in_hand([status]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert work.in_hand([status]) == ""
        client.sendall(b"x")
        time.sleep(0.1)
        assert work.in_hand([status]) == "1 workers at work"
        assert client.recv(1) == b"k"
    assert os.waitpid(pid, 0) == (pid, 0)
