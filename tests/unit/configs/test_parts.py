"""What `configs.parts` promises: the budget divided by shares."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import model

from configs.parts import divide
from configs.plan import Reasons
from configs.settings import ModelSettings

SHARES = st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 10.0]), min_size=1, max_size=6)


def cores(shares: list[float], budget: int) -> list[int]:
    """Cores of each model."""
    models = [model(f"m{index}") for index in range(len(shares))]
    own = [ModelSettings(share=share) for share in shares]
    return [part.cores for part in divide(models, own, budget, [budget], Reasons())]


@pytest.mark.parametrize(("shares", "budget", "expected"), [
    ([1.0], 8, [8]), ([1, 1], 8, [4, 4]), ([1, 1], 7, [4, 3]), ([3, 1], 8, [6, 2]), ([3, 1], 24, [18, 6]),
    ([1, 1, 1], 8, [3, 3, 2]), ([0.3, 0.1], 8, [6, 2]), ([10, 1], 3, [2, 1]), ([100, 1], 8, [7, 1]),
    ([1, 3], 4, [1, 3]), ([1, 1, 1], 2, [1, 1, 1]), ([5, 1, 1], 1, [1, 1, 1])])
def test_divide(shares: list[float], budget: int, expected: list[int]) -> None:
    assert cores(shares, budget) == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(SHARES, st.integers(1, 40))
def test_law_all_cores_are_given_and_a_larger_budget_takes_none_away(shares: list[float], budget: int) -> None:
    before, after = cores(shares, budget), cores(shares, budget + 1)
    assert sum(before) == max(budget, len(shares))
    assert all(less <= more for less, more in zip(before, after, strict=True))
    assert min(before) >= 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(SHARES, st.integers(1, 40))
def test_law_a_larger_share_never_gets_fewer_cores(shares: list[float], budget: int) -> None:
    given_ = sorted(zip(shares, cores(shares, budget), strict=True))
    assert all(left[1] <= right[1] for left, right in pairwise(given_) if left[0] < right[0])
