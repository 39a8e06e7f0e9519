"""Networks side by side on one pinned thread: figures that stand for the work, whoever asks and whatever else runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from configs.errors import ServerError, SettingsError
from handlers.artifact import Artifact, NetworkFile
from measure import timing
from models.formats import torchscript
from tests.unit.small_network import SPEC, batch, small_network

ROUNDS = 3


class Laborious(nn.Module):
    """A network behind forty rounds of work that change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_network()
        self.work = nn.Conv2d(3, 3, 15, padding=7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = x
        for _ in range(40):
            more = self.work(more)
        return self.network(x + 1e-9 * more)  # type: ignore[no-any-return]


def write(folder: Path, network: nn.Module) -> Path:
    """An artifact for the eager runtime."""
    folder.mkdir()
    (folder / "eager.pt").write_bytes(torchscript(network.eval(), batch(2), ipex=False))
    Artifact(folder.name, "1.0", "eager", {"eager": NetworkFile("eager.pt")}, SPEC, 1, 1, "image_scorer").write(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("artifacts")
    return [write(parent / "light", small_network()), write(parent / "heavy", Laborious())]


def test_every_network_has_a_figure_in_every_round_and_more_work_takes_longer(folders: list[Path]) -> None:
    threads, allowed = torch.get_num_threads(), os.sched_getaffinity(0)
    light, heavy = timing.side_by_side(folders, "eager", ROUNDS)
    assert len(light) == len(heavy) == ROUNDS and min(*light, *heavy) > 0
    assert timing.speedup(heavy, light).low > 1.5
    # whoever asks goes on as before
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (threads, allowed)


def test_what_cannot_be_opened_is_named_in_the_runtimes_words(folders: list[Path], tmp_path: Path) -> None:
    broken = write(tmp_path / "broken", small_network())
    (broken / "eager.pt").write_bytes(b"no network")
    with pytest.raises(ServerError, match="cannot open the network") as caught:
        timing.side_by_side([folders[0], broken], "eager", 1)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(ServerError, match="was not built for the runtime 'openvino'"):
        timing.side_by_side(folders, "openvino", 1)


def test_a_cpu_that_may_not_be_used_is_refused(folders: list[Path]) -> None:
    with pytest.raises(SettingsError, match="CPU 4095 may not be used"):
        timing.side_by_side(folders, "eager", 1, cpu=4095)


def test_networks_take_turns_in_rotating_order() -> None:
    asked: list[str] = []
    found = timing.in_turns([lambda name=name: asked.append(name) for name in "abc"], 3)  # type: ignore[misc]
    assert [len(each) for each in found] == [3, 3, 3]
    turns = asked[3 * timing.WARM_UP::timing.INFERENCES]
    assert "".join(turns) == "abcbcacab"


def test_a_speedup_is_the_median_of_the_rounds_own() -> None:
    # the machine is half as fast in the second round
    found = timing.speedup([10.0, 20.0, 12.0], [5.0, 10.0, 4.0])
    assert (found.median, found.low, found.high, found.rounds) == (2.0, 2.0, 3.0, 3)
    with pytest.raises(ValueError, match="no round"):
        timing.speedup([], [])
