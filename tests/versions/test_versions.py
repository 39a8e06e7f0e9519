"""On real TorchServes, old and new: the plan says the truth about each of them, and workers stand where it says."""

from __future__ import annotations

import io
import os
import re
import signal

import pytest
from PIL import Image

from configs.torchserve import Launcher, launcher_of
from serving.processes import command_line, process, threads

from ..integration.conftest import READY_SECONDS, wait_for
from .conftest import OldServer

# Versions whose launcher does what a plan says, and the argument with which TorchServe numbers their workers.
NUMBERED = {"0.6.1": "--instance_idx", "0.8.0": "--rank", "0.8.2": "--rank", "0.12.0": "--rank"}
MODULES = {"0.6.1": "intel_extension_for_pytorch.cpu.launch", "0.8.0": "torch.backends.xeon.run_cpu",
           "0.8.2": "torch.backends.xeon.run_cpu", "0.12.0": "torch.backends.xeon.run_cpu"}
NEVER_REPLACES = ("0.8.0", "0.8.2")
PHOTOS = {"red": (200, 10, 10), "green": (10, 200, 10), "blue": (10, 10, 200)}


def ancestors(pid: int, server: OldServer) -> list[tuple[str, ...]]:
    """Command lines of a worker's parents, up to the JVM and without it."""
    found, java = [], server.java()
    while (pid := parent(pid)) != java:
        assert pid > 1, "the worker does not descend from the JVM"
        found.append(command_line(pid))
    return found


def parent(pid: int) -> int:
    seen = process(pid)
    return seen.parent if seen else 0


def places(server: OldServer, model: str) -> list[tuple[int, ...]]:
    """The CPUs of each worker, which must be the same for all of its threads."""
    found = []
    for pid in server.workers(model):
        masks = {thread.cpus for thread in threads(pid)}
        assert len(masks) == 1, masks
        found.append(masks.pop())
    return found


def slots(server: OldServer, model: str) -> list[tuple[int, ...]]:
    return [slot.cpus for slot in server.plan.model(model).slots]


def launcher_processes(server: OldServer, launcher: Launcher) -> list[int]:
    """Those that hold a worker; a probe of the launcher runs another program."""
    lines = {pid: command_line(pid) for pid in server.left_over()}
    return [pid for pid, line in lines.items() if line[1:3] == ("-m", launcher.module) and "hostname" not in line]


def assert_stands_as_launched(server: OldServer, pid: int) -> None:
    """The launcher is this worker's parent, called as the plan says, and its number is the worker's slot."""
    launcher = launcher_of(server.version)
    assert launcher is not None and launcher.module == MODULES[server.version]
    wrapper = next(line for line in ancestors(pid, server) if line[1:3] == ("-m", launcher.module))
    given = server.plan.launcher_args.split()
    numbers = wrapper[3 + len(given):]
    assert list(wrapper[3:3 + len(given)]) == given
    assert numbers[:3] == ("--ninstances", "2", NUMBERED[server.version])
    assert {thread.cpus for thread in threads(pid)} == {slots(server, "colours")[int(numbers[3])]}


def assert_clean(server: OldServer) -> None:
    found = server.inspect()
    assert found.returncode == 0, found.stdout + found.stderr


def assert_answers(server: OldServer, model: str) -> None:
    """Enough of them for every worker to have handed its metrics over, which happens once a second."""
    for _ in range(4):
        for colour, pixel in PHOTOS.items():
            stream = io.BytesIO()
            Image.new("RGB", (40, 30), pixel).save(stream, "PNG")
            answer = server.post(model, content=stream.getvalue(), headers={"Content-Type": "application/octet-stream"})
            assert answer.status_code == 200, answer.text + server.text()
            assert answer.json()["predictions"][0]["label"] == colour


# --- one model, two workers ------------------------------------------------------------------------------------------

def test_one_model_stands_where_the_plan_says(alone: OldServer) -> None:
    assert sorted(places(alone, "colours")) == sorted(slots(alone, "colours"))
    assert len(set(slots(alone, "colours"))) == 2
    assert_clean(alone)


def test_the_launcher_is_on_where_it_numbers_workers(alone: OldServer) -> None:
    assert alone.plan.launcher == (alone.version in NUMBERED)
    workers = alone.workers("colours")
    if alone.plan.launcher:
        assert "the launcher pins worker i" in alone.why("cpu_launcher_enable")
        for pid in workers:
            assert_stands_as_launched(alone, pid)
            assert re.search(rf"placement: .* pid={pid} .*already pinned there", alone.text()), alone.text()
    else:
        assert "all on the same cores; workers pin themselves" in alone.why("cpu_launcher_enable")
        assert [ancestors(pid, alone) for pid in workers] == [[], []]
        assert "already pinned there" not in alone.text()


def test_one_model_answers(alone: OldServer) -> None:
    assert_answers(alone, "colours")


def test_a_killed_worker_is_replaced_on_the_free_slot(alone: OldServer) -> None:
    if alone.version in NEVER_REPLACES:
        pytest.skip("this version's own fault; see the next test")
    victim, neighbour = alone.workers("colours")
    stood = {thread.cpus for thread in threads(victim)}
    os.kill(victim, signal.SIGKILL)

    def replaced() -> bool:
        now = alone.workers("colours")
        return len(now) == 2 and victim not in now

    wait_for(replaced, READY_SECONDS, alone.text)
    replacement, = set(alone.workers("colours")) - {neighbour}
    assert {thread.cpus for thread in threads(replacement)} == stood
    assert_clean(alone)
    launcher = launcher_of(alone.version)
    if alone.plan.launcher and launcher:
        assert_stands_as_launched(alone, replacement)
        assert len(launcher_processes(alone, launcher)) == 2
    assert_answers(alone, "colours")


def test_the_audit_tells_where_a_killed_worker_is_never_replaced(alone: OldServer) -> None:
    """0.8.0 to 0.9.0 stop each replacement as soon as it is connected, a fault of their own, with the launcher or
    without; the other worker stays where it is and goes on answering."""
    if alone.version not in NEVER_REPLACES:
        pytest.skip("this version replaces it")
    victim, neighbour = alone.workers("colours")
    stands = {thread.cpus for thread in threads(neighbour)}
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: alone.text().count("Auto recovery failed again") >= 2, READY_SECONDS, alone.text)
    found = alone.inspect()
    assert found.returncode == 1 and "NOT READY" in found.stdout, found.stdout + found.stderr
    assert alone.workers("colours") == [neighbour]
    assert {thread.cpus for thread in threads(neighbour)} == stands
    assert_answers(alone, "colours")


# --- two models --------------------------------------------------------------------------------------------------

def test_two_models_stand_on_disjoint_cpus_without_the_launcher(pair: OldServer) -> None:
    assert not pair.plan.launcher
    because = "2 models would stand on the same cores" if pair.version in NUMBERED else "the launcher's only instance"
    assert because in pair.why("cpu_launcher_enable")
    (eager,), (ipex,) = places(pair, "colours"), places(pair, "hues")
    assert ([eager], [ipex]) == (slots(pair, "colours"), slots(pair, "hues"))
    assert set(eager).isdisjoint(ipex)
    assert_clean(pair)


@pytest.mark.parametrize(("model", "runtime"), [("colours", "eager"), ("hues", "ipex")])
def test_two_models_answer(pair: OldServer, model: str, runtime: str) -> None:
    assert_answers(pair, model)
    assert f"ready: model={model} version=1.0 runtime={runtime}" in pair.text()
