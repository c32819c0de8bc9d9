"""DAPO: groups that can teach something, a wider upper clip, a soft limit of the length."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rolecall.algorithms.dapo import Dapo, length_penalty
from rolecall.algorithms.grpo import Grpo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join
from tests.algorithms.small import said, singles
from tests.toy import episode, turn


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0), (16384, 0), (17408, -0.25), (18432, -0.5), (20480, -1), (20481, -1)],
)
def test_length_penalty_known_answers(length, penalty):
    assert length_penalty(length, longest=20480, cache=4096) == penalty


def test_without_a_cache_the_penalty_is_a_step():
    assert [length_penalty(n, longest=10, cache=0) for n in (9, 10, 11)] == [0, -1, -1]


@pytest.mark.parametrize(
    ("rewards", "kept"), [([1, 1, 1, 1], False), ([1, 1, 1, 0], True), ([0, 0], False)]
)
def test_groups_without_signal_are_filtered(rewards, kept):
    assert Dapo(longest=10).keep_group(singles(rewards)) is kept


def test_unequal_lengths_are_no_signal():
    """Raw outcomes, before any shaping."""
    group = [
        episode(i, [turn(episode=f"{i}", tokens=[7] * size)], {"team": 1.0})
        for i, size in enumerate([1, 4, 10, 10])
    ]
    assert not Dapo(longest=10).keep_group(group)


def test_a_group_is_refused_only_if_every_owner_is_constant():
    def group(*rewards):
        return [episode(i, [turn(episode=f"{i}")], r) for i, r in enumerate(rewards)]

    assert not Dapo(longest=10).keep_group(group({"a": 1, "b": 0}, {"a": 1, "b": 0}))
    assert Dapo(longest=10).keep_group(group({"a": 1, "b": 0}, {"a": 1, "b": 1}))


def test_the_penalty_is_the_turns_own_reward():
    """Lengths 8, 9, 10 of at most 10 with a cache of 2: 0, -.5 and -1 beside outcomes 1, 1, 0."""
    lengths = [8, 9, 10]
    episodes = [
        episode(i, [turn(episode=f"{i}", tokens=[7] * n)], {"team": r})
        for i, (n, r) in enumerate(zip(lengths, [1, 1, 0], strict=True))
    ]
    Dapo(longest=10).credit(episodes)  # a fifth of 10
    scores = np.array([1, 0.5, -1])
    expected = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
    assert said(episodes, "solver") == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_long_answer_of_one_agent_costs_no_other_agent():
    def team(size):
        made = []
        for i, reward in enumerate([1, 0, 1]):
            solver = turn("solver", episode=f"{i}", tokens=[7] * (size if i == 0 else 2))
            check = turn("verifier", episode=f"{i}", path=(1,))
            made.append(episode(i, [solver, check], {"team": reward}))
        return made

    short, long = team(2), team(10)
    for episodes in (short, long):
        Dapo(longest=10).credit(episodes)
    assert said(long, "verifier") == said(short, "verifier")
    differences = np.subtract(said(long, "solver"), said(short, "solver"))
    assert differences == pytest.approx([-2 / 3, 1 / 3, 1 / 3], abs=1e-6)


def test_below_the_limit_its_credit_is_grpos():
    mine, theirs = singles([1, 0, 0, 1]), singles([1, 0, 0, 1])
    Dapo(longest=100).credit(mine)
    Grpo().credit(theirs)
    assert said(mine, "solver") == said(theirs, "solver")


@pytest.mark.parametrize(("ratio", "counted"), [(1.27, 1.27), (1.3, 1.28), (0.7, 0.7)])
def test_it_clips_higher_and_averages_over_ids(ratio, counted):
    one, two = turn(tokens=[7], advantage=1.0), turn(tokens=[7] * 3, episode="e1", advantage=0.0)
    for made in (one, two):
        made.training.prox_logprobs = made.logprobs
    batch = join([[one], [two]])
    outputs = Outputs(torch.from_numpy(batch.old_logprobs + np.float32(math.log(ratio))))
    loss = Dapo(longest=10, epochs=2).loss(batch, outputs)
    assert loss.total.item() / loss.count == pytest.approx(-counted / 4, rel=1e-5)
    assert (Dapo().agg, Dapo().kl, Dapo().clip_low, Dapo().clip_high) == ("token", 0.0, 0.2, 0.28)
