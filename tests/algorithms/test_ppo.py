"""PPO: an agent's turns of an episode are one chain of ids, with a value before each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolecall.algorithms.ppo import Ppo
from rolecall.core import gae
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join
from tests.algorithms.small import Unigram, floats
from tests.toy import episode, turn


def two_turns(*, own: float = 0.0, outcome: float = 1.0, name: str = "0"):
    """The example of ALGORITHMS 2.9: values [.5, .6] and [.2]."""
    one = turn(episode=name, tokens=[7, 7], rewards={"r": own} if own else {})
    two = turn(episode=name, tokens=[7], path=(2,))
    one.training.values, two.training.values = floats([0.5, 0.6]), floats([0.2])
    return episode(int(name), [one, two], {"team": outcome})


def found(e, name: str = "advantages") -> list[float]:
    return [float(x) for t in e.turns for x in getattr(t, name)]


@pytest.mark.parametrize(
    ("options", "own", "expected"),
    [
        ({"lam": 0.95}, 0.0, [0.442, 0.36, 0.8]),
        ({"lam": 1.0}, 0.0, [0.5, 0.4, 0.8]),
        ({"lam": 0.5, "gamma_turn": 0.9}, 0.1, [0.12, 0.04, 0.8]),
    ],
)
def test_known_answers(options, own, expected):
    """Pitfall: responses as episodes of their own: .48, .40 | .8, with the outcome paid twice."""
    e = two_turns(own=own)
    Ppo(whiten=False, **options).credit([e])
    assert found(e) == pytest.approx(expected, abs=1e-6)


def test_returns_are_advantages_plus_values_before_any_whitening():
    """Pitfall: returns built from whitened advantages."""
    episodes = [two_turns(name="0"), two_turns(outcome=0.0, name="1")]
    Ppo(whiten=True).credit(episodes)
    assert found(episodes[0], "returns") == pytest.approx([0.942, 0.96, 1.0], abs=1e-6)
    values = np.array([x for e in episodes for x in found(e)])
    assert (values.mean(), values.std(ddof=1)) == pytest.approx((0.0, 1.0), abs=1e-6)


def random_episodes(number: int):
    draw, made = np.random.default_rng(0), []
    for i in range(number):
        turns = []
        for k in range(draw.integers(1, 5)):
            agent = draw.choice(["solver", "verifier"])
            one = turn(
                agent, episode=f"{i}", path=(k,), tokens=[7] * draw.integers(1, 5), policy=agent
            )
            one.training.values = floats(draw.normal(size=len(one.tokens)))
            one.rewards = {"r": draw.normal()}
            turns.append(one)
        made.append(episode(i, turns, {"solver": draw.normal(), "team": draw.normal()}))
    return made


def chain(e, agent, *, gamma, gamma_turn):
    """Rewards, values and discounts of an agent's ids, written down in another way."""
    rewards, values, discounts = [], [], []
    for one in (t for t in e.turns if t.agent == agent):
        rewards += [0.0] * (len(one.tokens) - 1) + [one.score]
        values += one.training.values.tolist()
        discounts += [gamma] * (len(one.tokens) - 1) + [gamma_turn]
    rewards[-1] += e.outcome(agent)
    return rewards, values, discounts


def test_lambda_and_gamma_of_one_give_the_return_less_the_value():
    """Degenerate; an agent's return skips what others earned and said between its turns."""
    episodes = random_episodes(20)
    Ppo(whiten=False, lam=1.0).credit(episodes)
    for e in episodes:
        for agent in {t.agent for t in e.turns}:
            rewards, values, _ = chain(e, agent, gamma=1, gamma_turn=1)
            expected = [sum(rewards[i:]) - v for i, v in enumerate(values)]
            said = [float(x) for t in e.turns if t.agent == agent for x in t.advantages]
            assert said == pytest.approx(expected, abs=1e-5)


def test_advantages_are_the_discounted_sum_of_later_deltas():
    """GAE (1506.02438, eq. 16), as a double sum."""
    episodes = random_episodes(20)
    Ppo(whiten=False, lam=0.7, gamma=0.9, gamma_turn=0.8).credit(episodes)
    for e in episodes:
        for agent in {t.agent for t in e.turns}:
            r, v, g = chain(e, agent, gamma=0.9, gamma_turn=0.8)
            delta = [
                r[i] + g[i] * (v[i + 1] if i + 1 < len(v) else 0) - v[i] for i in range(len(r))
            ]
            expected = [
                sum(np.prod(np.multiply(g[i:k], 0.7)) * delta[k] for k in range(i, len(r)))
                for i in range(len(r))
            ]
            said = [float(x) for t in e.turns if t.agent == agent for x in t.advantages]
            assert said == pytest.approx(expected, abs=1e-5)
            returns = [float(x) for t in e.turns if t.agent == agent for x in t.returns]
            assert returns == pytest.approx(np.add(expected, v).tolist(), abs=1e-5)


def test_gae_of_the_example_in_its_docstring_and_of_the_flattened_team():
    """The second is 2.13's example: gamma .99, lam .95."""
    assert gae.advantages([0, 0, 1], [0.5, 0.6, 0.2], discounts=[1] * 3, lam=0.95) == pytest.approx(
        [0.442, 0.36, 0.8]
    )
    found = gae.advantages([0, 0, 0, 1], [0.5, 0.6, 0.4, 0.8], discounts=[0.99] * 4, lam=0.95)
    assert found == pytest.approx([0.41526, 0.341584, 0.5801, 0.2], abs=1e-5)
    found = gae.advantages([0, 0, 0, 1], [0.5, 0.6, 0.4, 0.8], discounts=[1] * 4, lam=1)
    assert found == pytest.approx([0.5, 0.4, 0.6, 0.2])


def test_an_episode_that_was_cut_never_bootstraps_from_the_next():
    cut, alone = [two_turns(name="0"), two_turns(name="1")], two_turns(name="0")
    for one in (*(e.turns[1] for e in cut), alone.turns[1]):
        one.finish = "length"
    cut[1].turns[0].training.values = floats([100.0, 100.0])
    Ppo(whiten=False).credit(cut)
    Ppo(whiten=False).credit([alone])
    assert found(cut[0]) == found(alone) == pytest.approx([0.442, 0.36, 0.8], abs=1e-6)


def test_an_advantage_of_exactly_zero_is_not_taken_for_a_missing_one():
    """Pitfall."""
    e = two_turns(outcome=0.2)
    e.turns[0].training.values = floats([0.2, 0.2])
    Ppo(whiten=False).credit([e])
    assert found(e) == pytest.approx([0.0] * 3, abs=1e-7)
    assert found(e, "returns") == pytest.approx([0.2] * 3, abs=1e-6)
    assert not Ppo().skips_zero  # such turns still teach the value head


def test_the_kl_is_a_cost_of_each_id():
    e = two_turns()
    e.turns[0].training.ref_logprobs = e.turns[0].logprobs - floats([0.2, -0.1])
    e.turns[1].training.ref_logprobs = e.turns[1].logprobs - floats([0.5])
    Ppo(whiten=False, lam=1.0, kl=0.1, kl_in="reward").credit([e])
    rewards = [-0.02, 0.01, 1 - 0.05]
    expected = [sum(rewards) - 0.5, sum(rewards[1:]) - 0.6, rewards[2] - 0.2]
    assert found(e) == pytest.approx(expected, abs=1e-6)


def test_the_loss_adds_half_the_squared_error_of_the_value_head():
    """v_old .5, v 1.0, return .9 -> .02, times value_coef .1; N = 2."""
    one = turn(tokens=[7, 7], advantage=1.0)
    one.training.values, one.returns, one.training.prox_logprobs = (
        floats([0.5] * 2),
        floats([0.9] * 2),
        one.logprobs,
    )
    batch = join([[one]])
    values = torch.full((4,), 1.0, requires_grad=True)
    outputs = Outputs(torch.from_numpy(batch.old_logprobs.copy()), values=values)
    loss = Ppo().loss(batch, outputs)
    loss.total.backward()
    assert loss.total.item() / loss.count == pytest.approx(-1 + 0.1 * 0.02, rel=1e-6)
    assert loss.sums["value_loss"] / loss.count == pytest.approx(0.002, rel=1e-5)
    # .5 max((v - .9)^2, (.7 - .9)^2): the bounded square is the larger one, and it is constant
    assert not values.grad.any()
    assert Ppo(value_coef=1.0).loss(batch, outputs).sums["value_loss"] == pytest.approx(0.04)


def test_the_defaults_are_those_of_the_specification():
    ppo = Ppo()
    values = (ppo.gamma, ppo.gamma_turn, ppo.lam, ppo.clip_value, ppo.value_coef, ppo.epochs)
    assert values == (1.0, 1.0, 0.95, 0.2, 0.1, 4)
    assert (ppo.whiten, ppo.critic, ppo.min_group, ppo.needs_prox) == (True, "agent", 1, True)


@pytest.mark.evidence
def test_two_independent_bandits_are_solved():
    """2.9: P(best) >= .99 after 200 steps of 128 samples at lr .5."""
    draw, size = np.random.default_rng(0), 128
    best = {"left": 0, "right": 2}
    policies = {agent: Unigram([0.0, 0.0, 0.0]) for agent in best}
    algorithm = Ppo(epochs=1, value_coef=0.0)
    for _ in range(200):
        actions = {agent: policy.sample(size, draw) for agent, policy in policies.items()}
        episodes = []
        for i in range(size):
            turns = []
            for agent in best:
                token = actions[agent][i]
                one = turn(agent, episode=f"{i}", tokens=[token], prompt=[8], policy=agent)
                one.logprobs[0] = policies[agent].logprob(token)
                one.training.values = floats([0.0])
                turns.append(one)
            earned = {agent: float(actions[agent][i] == best[agent]) for agent in best}
            episodes.append(episode(i, turns, earned))
        algorithm.credit(episodes)
        for agent, policy in policies.items():
            turns = [[t] for e in episodes for t in e.turns if t.agent == agent]
            policy.descend([join(turns)], algorithm, lr=0.5)
    assert all(policies[agent].probability(arm) >= 0.99 for agent, arm in best.items())
