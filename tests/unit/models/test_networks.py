"""Weights of any kind are told apart by content, and nothing in them is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from handlers.errors import ArtifactError
from models.networks import ScoreNetwork, StageStatistics, read_state_dict, weights_kind


class Trap:
    """Would make a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> object:
        return os.mkdir, (self.path,)


def test_p34_kinds(tmp_path: Path) -> None:
    linear = torch.nn.Linear(2, 2)
    torch.save(linear.state_dict(), tmp_path / "state.pth")
    torch.save(linear.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.jit.script(linear).save(str(tmp_path / "script.pt"))
    save_file(dict(linear.state_dict()), str(tmp_path / "x.safetensors"))
    (tmp_path / "junk").write_bytes(b"junk")
    names = ("state.pth", "old.pth", "script.pt", "x.safetensors", "junk")
    kinds = {name: weights_kind(tmp_path / name) for name in names}
    assert kinds == {"state.pth": "checkpoint", "old.pth": "checkpoint", "script.pt": "TorchScript",
                     "x.safetensors": "safetensors", "junk": "an unknown file"}
    for name in ("state.pth", "old.pth", "x.safetensors"):
        assert torch.equal(read_state_dict(tmp_path / name)["weight"], linear.weight)


@pytest.mark.parametrize("zipped", [True, False])
def test_p34_a_pickle_that_would_run_code_is_named_and_not_run(tmp_path: Path, zipped: bool) -> None:
    made = tmp_path / "made"
    torch.save({"weight": torch.zeros(1), "trap": Trap(made)}, tmp_path / "trap.pth",
               _use_new_zipfile_serialization=zipped)
    with pytest.raises(ArtifactError, match=r"posix\.mkdir"):
        read_state_dict(tmp_path / "trap.pth")
    assert not made.exists()


def test_statistics_are_means_and_deviations_of_every_stage() -> None:
    backbone = torch.nn.Module()
    backbone.conv_stem, backbone.bn1 = torch.nn.Identity(), torch.nn.Identity()
    backbone.blocks = torch.nn.Sequential(torch.nn.Identity(), torch.nn.AvgPool2d(2))
    x = torch.randn(2, 3, 8, 8) + 1
    found = StageStatistics(backbone)(x)
    assert found.shape == (2, 18)
    expected = torch.cat([x.mean((2, 3)), x.std((2, 3), correction=0)], 1)
    assert torch.allclose(found[:, :6], expected.sign() * expected.abs().log1p(), atol=1e-4)


def backbone(*blocks: torch.nn.Module) -> torch.nn.Module:
    found = torch.nn.Module()
    found.conv_stem, found.bn1 = torch.nn.Identity(), torch.nn.Identity()
    found.blocks = torch.nn.Sequential(*blocks)
    return found


def test_deviations_of_channels_that_hardly_vary_keep_their_digits() -> None:
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 1e-2 + 100.0
    found = StageStatistics(backbone())(x)
    wanted = x.double().std((2, 3), correction=0).log1p()
    assert torch.allclose(found[:, 3:].double(), wanted, rtol=1e-3)


def test_later_stages_are_left_out_with_all_their_weights() -> None:
    whole = backbone(torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 5, 1))
    first = StageStatistics(whole, 1)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(first(x), StageStatistics(whole)(x)[:, :14])
    assert len(first.state_dict()) == 2


def test_a_score_counts_no_feature_beyond_its_limit() -> None:
    network = ScoreNetwork(torch.nn.Flatten(), 3)
    with torch.no_grad():
        network.linear.weight.fill_(1.0)
        network.linear.bias.zero_()
    assert network(torch.tensor([[1.0, 2.0, 1e6]])).tolist() == [3.0 + ScoreNetwork.LIMIT]
