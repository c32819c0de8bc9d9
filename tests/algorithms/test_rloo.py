"""RLOO: the baseline of an attempt is the mean of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.rloo import Rloo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join
from tests.algorithms.small import Unigram, floats, said, singles
from tests.toy import episode, turn


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0], [1, -0.5, -0.5]),
        ([1, 1, 0, 0], [0.666667, 0.666667, -0.666667, -0.666667]),
        ([1, 0], [1, -1]),
        ([1], [0]),
    ],
)
def test_known_answers(rewards, expected):
    episodes = singles(rewards)
    Rloo().credit(episodes)
    assert said(episodes, "solver") == pytest.approx(expected, abs=5e-7)


def test_advantages_of_attempts_with_one_turn_sum_to_zero_and_keep_the_unit_of_the_reward():
    draw = np.random.default_rng(0)
    rewards = draw.normal(size=8)
    small, large = singles(rewards), singles(10 * rewards)
    Rloo().credit(small)
    Rloo().credit(large)
    assert sum(said(small, "solver")) == pytest.approx(0.0, abs=1e-6)
    assert said(large, "solver") == pytest.approx([10 * a for a in said(small, "solver")], rel=1e-6)


def test_it_is_the_centred_reward_times_k_over_k_minus_one():
    """The identity of 2.2: R - mean = (K - 1) / K * A."""
    rewards = [0.3, 0.9, -0.4, 0.0, 0.7]
    episodes = singles(rewards)
    Rloo().credit(episodes)
    centred = np.array(rewards) - np.mean(rewards)
    assert said(episodes, "solver") == pytest.approx((5 / 4 * centred).tolist(), abs=1e-6)


def test_the_baseline_leaves_out_every_turn_of_the_attempt_and_uses_all_of_the_others():
    """Pitfall: with several turns only the first row's score was used. One attempt of scores
    1 - .2 and 1, one of 0 and .5: the first's turns meet .25, the second's .9.
    """
    first = [turn(episode="0", rewards={"r": -0.2}), turn(episode="0", path=(1,))]
    second = [turn(episode="1"), turn(episode="1", path=(1,), rewards={"r": 0.5})]
    episodes = [episode(0, first, {"team": 1}), episode(1, second, {"team": 0})]
    for count in ("episode_agent", "turn"):
        Rloo(count=count).credit(episodes)
        assert said(episodes, "solver") == pytest.approx([0.55, 0.75, -0.9, -0.4])


def test_own_rewards_count_where_attempts_are_equal_on_average():
    """Raw scores 1 and 0 in one attempt, .5 in the other: they are not constant (rule 6)."""
    first = [turn(episode="0", rewards={"r": 1}), turn(episode="0", path=(1,))]
    episodes = [episode(0, first, {}), episode(1, [turn(episode="1", rewards={"r": 0.5})], {})]
    Rloo().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([0.5, -0.5, 0.0])


def test_an_agent_that_spoke_in_one_attempt_only_gets_zero():
    episodes = singles([1, 0])
    episodes[0].turns.append(turn("verifier", episode="x0", path=(1,)))
    Rloo().credit(episodes)
    assert said(episodes, "verifier") == [0.0]
    assert said(episodes, "solver") == [1.0, -1.0]


def test_the_kl_is_taken_from_the_reward():
    """R - beta * sum(old - ref): 1 - .1 * (.2 - .1) and 0 - .1 * .4."""
    episodes = singles([1, 0])
    for e, ref in zip(episodes, ([-1.2, -0.9], [-1.4, -1.0]), strict=True):
        e.turns[0].training.ref_logprobs = floats(ref)
    algorithm = Rloo(kl=0.1, kl_in="reward")
    algorithm.credit(episodes)
    assert said(episodes, "solver") == pytest.approx([0.99 + 0.04, -1.03], abs=1e-6)
    assert algorithm.needs_reference
    assert algorithm.skips_zero


def test_the_loss_is_the_plain_policy_gradient_of_whole_utterances():
    """-A * sum of lp over the turns, a mean over turns; no ratio, no clip."""
    turns = [turn(tokens=[0, 1], advantage=1.0), turn(tokens=[2], advantage=-0.5, episode="e1")]
    for one in turns:
        one.logprobs = floats([np.log(1 / 3)] * len(one.tokens))
    policy = Unigram([0.0, 0.0, 0.0])
    lp = policy.logits.log_softmax(0)
    expected = torch.autograd.grad(-(lp[0] + lp[1] - 0.5 * lp[2]) / 2, policy.logits)[0]
    assert torch.allclose(policy.gradient([join([[t] for t in turns])], Rloo()), expected)


def test_the_weight_of_rule_24_multiplies_it():
    one = turn(tokens=[0, 0], advantage=1.0)
    one.logprobs = floats([np.log(1 / 3) - 0.4, np.log(1 / 3) - 3.0])  # d = .4 and 3
    policy = Unigram([0.0, 0.0, 0.0])
    lp = policy.logits.log_softmax(0)
    expected = torch.autograd.grad(-(np.exp(0.4) + 2.0) * lp[0], policy.logits)[0]
    assert torch.allclose(policy.gradient([join([[one]])], Rloo()), expected, atol=1e-6)


def test_several_steps_on_one_batch_are_clipped():
    one = turn(tokens=[7], advantage=1.0)
    one.training.prox_logprobs = one.logprobs
    batch = join([[one]])
    current = Outputs(torch.from_numpy(batch.old_logprobs + np.float32(1.0)))
    assert Rloo(epochs=2).loss(batch, current).total.item() == pytest.approx(-1.2, rel=1e-5)
    assert Rloo(epochs=2).needs_prox


def test_one_step_of_it_is_one_step_of_grpos_loss_with_the_same_advantages():
    turns = [turn(tokens=[i % 3], episode=f"e{i}", advantage=a) for i, a in enumerate([1, -2, 0.5])]
    policy = Unigram([0.4, 0.0, -0.4])
    for one in turns:
        one.logprobs = floats([policy.logprob(int(one.tokens[0]))])
    batch = join([[one] for one in turns])
    assert torch.allclose(
        policy.gradient([batch], Rloo()), policy.gradient([batch], DrMas()), atol=1e-6
    )


def test_the_kl_is_part_of_the_reward_of_whole_turns():
    """R - kl * sum(old - ref): .8 and .1 of two attempts -> +-.7."""
    episodes = [
        episode(0, [turn(tokens=[1, 2])], {"team": 1.0}),
        episode(1, [turn(tokens=[3], episode="e1")], {"team": 0.0}),
    ]
    for each, apart in zip(episodes, ([0.3, 0.1], [-0.2]), strict=True):
        [one] = each.turns
        one.training.ref_logprobs = (one.logprobs - np.array(apart)).astype(np.float32)
    algorithm = Rloo(kl=0.5)
    assert algorithm.needs_reference
    algorithm.credit(episodes)
    assert said(episodes, "solver") == pytest.approx([0.7, -0.7], abs=1e-6)
    batch = join([[each.turns[0]] for each in episodes])
    logprobs = torch.full((len(batch.tokens),), -1.0)
    assert "kl_loss" not in algorithm.loss(batch, Outputs(logprobs)).sums
