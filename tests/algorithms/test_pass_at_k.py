"""Pass@k training: an attempt is worth what it does for the groups of k that it is in."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.pass_at_k import PassAtK, group_values
from tests.algorithms.small import said, singles


@pytest.mark.parametrize(
    ("k", "rewards", "expected"),
    [
        # M 3 of N 4: mean 1 - 3/6, spread 1/2; of the three pairs of a wrong one, one is right:
        # (1/3 - 1/2) / (1/2) = -1/3
        (2, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        # M 2 of N 4: mean 5/6, spread sqrt(5)/6; right 1 - 5/6, wrong 2/3 - 5/6
        (2, [1, 1, 0, 0], [5**-0.5, 5**-0.5, -(5**-0.5), -(5**-0.5)]),
        (2, [1, 1, 1, 0], [0, 0, 0, 0]),  # every pair holds a right one
        (1, [1, 0, 0, 0], [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)]),
        (4, [1, 0], [0, 0]),  # fewer than k: the one group is right
        (2, [0, 0, 0], [0, 0, 0]),
        (2, [1], [0]),
    ],
)
def test_known_answers(k, rewards, expected):
    episodes = singles(rewards)
    PassAtK(k=k).credit(episodes)
    assert said(episodes, "solver") == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("wrong", range(7))
def test_the_closed_form_is_the_mean_over_all_groups(k, wrong):
    n = 6
    right = [False] * wrong + [True] * (n - wrong)
    groups = list(combinations(range(n), k))
    rewards = [float(any(right[i] for i in group)) for group in groups]
    values, mean, std = group_values(n, wrong, k)
    assert mean == pytest.approx(np.mean(rewards))
    assert std == pytest.approx(np.std(rewards))
    for i in {0, n - 1}:
        own = [r for group, r in zip(groups, rewards, strict=True) if i in group]
        assert values[right[i]] == pytest.approx(np.mean(own))


def test_with_k_1_it_orders_attempts_as_grpo_does():
    episodes, others = singles([1, 0, 1, 0, 0]), singles([1, 0, 1, 0, 0])
    PassAtK(k=1).credit(episodes)
    Grpo().credit(others)
    ratio = np.array(said(episodes, "solver")) / np.array(said(others, "solver"))
    assert ratio == pytest.approx([ratio[0]] * 5, rel=1e-5)


def test_a_partial_reward_is_right_from_the_threshold_on():
    episodes = singles([0.6, 0.4, 0.0, 0.0])
    PassAtK(k=2, right=0.5).credit(episodes)
    assert said(episodes, "solver") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3], abs=1e-5)
