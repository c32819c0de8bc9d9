"""HAPPO: what updated policies changed weighs on those that wait."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rolecall.algorithms.happo import Happo
from rolecall.algorithms.mappo import Mappo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join
from tests.algorithms.small import floats, team_step
from tests.toy import episode, turn

LOG_RATIOS = [0.1, 0.1, -0.05]


def spoken(agent: str, log_ratios, *, policy: str, index: int = 0, path=(0,), parents=()):
    one = turn(agent, tokens=[7] * len(log_ratios), policy=policy, path=path)
    one.index, one.parents = index, tuple(t.id for t in parents)
    one.training.values = floats([0.0] * len(log_ratios))
    one.training.prox_logprobs = one.logprobs + np.float32(
        0.3
    )  # the sampler is not what it is told from
    one.training.new_logprobs = one.training.prox_logprobs + floats(log_ratios)
    return one


def dialogue():
    """a, b who reads a, a who reads b, b who reads a again; the log-ratios of each are known."""
    a0 = spoken("a", LOG_RATIOS, policy="p")
    b0 = spoken("b", [0.2], policy="q", path=(1,), parents=[a0])
    a1 = spoken("a", [-0.4, 0.1], policy="p", index=1, path=(2,), parents=[b0])
    b1 = spoken("b", [0.05], policy="q", index=1, path=(3,), parents=[a1])
    return episode(0, [a0, b0, a1, b1], {"team": 1.0})


def weights(e) -> list[float]:
    return [t.weight for t in e.turns]


@pytest.mark.parametrize(("ratio", "expected"), [("sequence", 1.161834), ("geometric", 1.051271)])
def test_known_answers(ratio, expected):
    a = spoken("a", LOG_RATIOS, policy="p")
    b = spoken("b", [0.0], policy="q", path=(1,), parents=[a])
    e = episode(0, [a, b], {"team": 1.0})
    algorithm = Happo(ratio=ratio, clamp=False)
    algorithm.credit([e])
    algorithm.after_update("p", [e])
    assert weights(e) == pytest.approx([1.0, expected], abs=1e-6)


@pytest.mark.parametrize(
    ("factor", "first", "expected"),
    [
        # p has spoken first: b reads a0 before b0, and a1 only before b1
        ("round", "p", [0, 0.15, 0, -0.3]),
        ("before", "p", [0, 0.15, 0, 0.15 - 0.3]),
        ("episode", "p", [0, 0.15 - 0.3, 0, 0.15 - 0.3]),
        # q first: b0 and b1 descend from a0, b1 from a1
        ("round", "q", [0.2, 0, 0.05, 0]),
        ("before", "q", [0, 0, 0.2, 0]),
        ("episode", "q", [0.25, 0, 0.25, 0]),
    ],
)
def test_which_updated_turns_count(factor, first, expected):
    e = dialogue()
    algorithm = Happo(factor=factor, clamp=False)
    algorithm.credit([e])
    assert weights(e) == [1.0] * 4
    algorithm.after_update(first, [e])
    assert weights(e) == pytest.approx([math.exp(x) for x in expected], abs=1e-6)


def test_parallel_turns_are_not_descendants_of_each_other():
    left, right = spoken("a", [0.2], policy="p"), spoken("b", [0.0], policy="q", path=(1,))
    e = episode(0, [left, right], {"team": 1.0})
    algorithm = Happo(factor="before", clamp=False)
    algorithm.credit([e])
    algorithm.after_update("p", [e])
    assert weights(e) == pytest.approx([1.0, math.exp(0.2)], rel=1e-6)


def test_the_factor_is_recomputed_over_all_updated_policies_and_not_multiplied_twice():
    turns = [spoken("abc"[k], [0.1 * (k + 1)], policy="pqr"[k], path=(k,)) for k in range(3)]
    e = episode(0, turns, {"team": 1.0})
    algorithm = Happo(clamp=False)
    for _ in range(2):  # a new step starts from 1 again
        algorithm.credit([e])
        assert weights(e) == [1.0] * 3
        algorithm.after_update("r", [e])
        assert weights(e) == pytest.approx([math.exp(0.3), math.exp(0.3), 1.0], rel=1e-6)
        algorithm.after_update("p", [e])
        assert weights(e) == pytest.approx([math.exp(0.3), math.exp(0.4), 1.0], rel=1e-6)


def test_agents_that_share_a_policy_are_one_block():
    turns = [spoken("abc"[k], [0.1], policy="ppq"[k], path=(k,)) for k in range(3)]
    e = episode(0, turns, {"team": 1.0})
    algorithm = Happo(clamp=False)
    algorithm.credit([e])
    algorithm.after_update("p", [e])
    assert weights(e) == pytest.approx([1.0, 1.0, math.exp(0.2)], rel=1e-6)


def test_the_factor_is_clamped_by_default_and_counted():
    for log_ratio, expected in ((3.0, 2.0), (-3.0, 0.5), (0.5, math.exp(0.5))):
        one = spoken("a", [log_ratio], policy="p")
        e = episode(0, [one, spoken("b", [0.0], policy="q", path=(1,))], {"team": 1.0})
        algorithm = Happo()
        algorithm.credit([e])
        algorithm.after_update("p", [e])
        assert weights(e)[1] == pytest.approx(expected, rel=1e-6)
        assert algorithm.metrics() == {"clamped_factors": float(expected in (0.5, 2.0))}


def test_a_factor_of_many_turns_stays_finite():
    turns = [spoken("a", [25.0], policy="p", path=(k,)) for k in range(50)]
    e = episode(0, [*turns, spoken("b", [0.0], policy="q", path=(99,))], {"team": 1.0})
    algorithm = Happo(factor="episode", clamp=False)
    algorithm.credit([e])
    algorithm.after_update("p", [e])
    assert weights(e)[-1] == pytest.approx(math.exp(20.0))


def test_a_policy_that_did_not_move_gives_exactly_one():
    """Degenerate."""
    e = dialogue()
    for one in e.turns:
        one.training.new_logprobs = one.training.prox_logprobs.copy()
    algorithm = Happo(factor="episode")
    algorithm.credit([e])
    algorithm.after_update("p", [e])
    assert weights(e) == [1.0] * 4


def test_one_policy_is_exactly_mappo():
    """Degenerate: credit, weights and loss."""
    mine, theirs = team_step(), team_step()
    for t in (t for e in (*mine, *theirs) for t in e.turns):
        t.policy = "p"
    happo, mappo = Happo(), Mappo()
    happo.credit(mine)
    happo.after_update("p", mine)
    mappo.credit(theirs)
    batches = [join([[t] for e in episodes for t in e.turns]) for episodes in (mine, theirs)]
    for name in ("advantages", "returns", "weight"):
        assert np.array_equal(getattr(batches[0], name), getattr(batches[1], name))
    outputs = Outputs(torch.from_numpy(batches[0].prox_logprobs + np.float32(0.1)))
    losses = [a.loss(b, outputs) for a, b in zip((happo, mappo), batches, strict=True)]
    assert losses[0].total.item() == losses[1].total.item()
    assert happo.needs_prox
    assert happo.one_policy_at_a_time


def test_with_the_sampler_as_anchor_the_factor_starts_from_the_sampler():
    one = spoken("a", LOG_RATIOS, policy="p")
    e = episode(0, [one, spoken("b", [0.0], policy="q", path=(1,))], {"team": 1.0})
    algorithm = Happo(anchor="sampler", clamp=False)
    algorithm.credit([e])
    algorithm.after_update("p", [e])
    assert weights(e)[1] == pytest.approx(math.exp(3 * 0.3 + 0.15), rel=1e-5)


def test_the_loss_is_weighed_by_the_factor():
    one = turn(tokens=[7], advantage=1.0)
    one.weight, one.training.prox_logprobs = 1.5, one.logprobs
    batch = join([[one]])
    loss = Happo().loss(batch, Outputs(torch.from_numpy(batch.old_logprobs.copy())))
    assert (loss.total.item(), loss.count) == (-1.5, 1.0)


PAYOFF = [[0.0, 2.0], [2.0, -1.0]]
START = (0.7, 0.3)  # of both agents


def joint_actions():
    """Every joint action once; its probability weighs what is summed over it."""
    made = []
    for number, (a, b) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        turns = []
        for agent, action in (("a", a), ("b", b)):
            one = turn(agent, episode=f"{number}", tokens=[action], policy=agent)
            one.training.values = floats([0.0])
            one.training.prox_logprobs = one.logprobs = floats([math.log(START[action])])
            turns.append(one)
        made.append(episode(number, turns, {"team": PAYOFF[a][b]}))
    return made


def best_response(algorithm, episodes, agent: str):
    """Values of an agent's actions under what the others do now, by M; the best of them."""
    values = [0.0, 0.0]
    for e in episodes:
        mine, other = sorted(e.turns, key=lambda t: t.agent != agent)
        values[int(mine.tokens[0])] += (
            START[int(other.tokens[0])] * mine.weight * float(mine.advantages[0])
        )
    best = int(np.argmax(values))
    for e in episodes:
        for t in e.turns:
            if t.agent == agent:
                t.training.new_logprobs = floats([0.0 if int(t.tokens[0]) == best else -1e9])
    algorithm.after_update(agent, episodes)
    return values, best


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_one_best_response_each_on_the_matrix_game(order):
    """Section 4: J .75 before, simultaneous -1, sequential 2 in either order; the second agent's
    action values are [.6, 1.1] without M and [2, -1] with M.
    """
    before = sum(START[a] * START[b] * PAYOFF[a][b] for a in (0, 1) for b in (0, 1))
    assert before == pytest.approx(0.75)
    for algorithm, second_values, payoff in (
        (Mappo(whiten=False), [0.6, 1.1], -1.0),
        (Happo(whiten=False, clamp=False), [2.0, -1.0], 2.0),
    ):
        episodes, best = joint_actions(), {}
        algorithm.credit(episodes)
        values, best[order[0]] = best_response(algorithm, episodes, order[0])
        assert values == pytest.approx([0.6, 1.1], abs=1e-6)
        values, best[order[1]] = best_response(algorithm, episodes, order[1])
        assert values == pytest.approx(second_values, abs=1e-5)
        assert PAYOFF[best["a"]][best["b"]] == payoff
