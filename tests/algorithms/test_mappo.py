"""MAPPO: an episode is a chain of stages, valued by one critic of the whole conversation."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import numpy as np
import pytest
import torch

from rolecall.algorithms.mappo import Mappo
from rolecall.algorithms.ppo import Ppo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join
from tests.algorithms.small import floats, said
from tests.toy import episode, turn


def talk(values, outcome=1.0, *, name: str = "0", rewards=None):
    """Each turn reads the one before it, agents in turns: a, b, a, ..."""
    turns = []
    for k, value in enumerate(values):
        one = turn("ab"[k % 2], episode=name, path=(k,))
        one.parents = (turns[-1].id,) if turns else ()
        one.training.values, one.index = floats([value] * 2), k // 2
        turns.append(one)
    return episode(int(name), turns, rewards or {"team": outcome})


def each(e, name: str = "advantages") -> list[float]:
    assert all(len(set(getattr(t, name).tolist())) == 1 for t in e.turns)
    return [float(getattr(t, name)[0]) for t in e.turns]


def test_known_answer():
    e = talk([0.5, 0.7, 0.4])
    Mappo(whiten=False).credit([e])
    assert each(e) == pytest.approx([0.4565, 0.27, 0.6], abs=1e-6)
    assert each(e, "returns") == pytest.approx([0.9565, 0.97, 1.0], abs=1e-6)


def test_turns_that_did_not_hear_each_other_share_a_stage_and_its_advantage():
    """The chain above, with two agents in its second stage whose own rewards add up to 0."""
    e = talk([0.5, 0.7, 0.4])
    beside = turn("c", episode="0", path=(1, 1), rewards={"r": -0.2})
    beside.parents, beside.training.values = e.turns[1].parents, floats([0.7] * 2)
    e.turns[1].rewards = {"r": 0.2}
    e.turns.insert(2, beside)
    e.turns[3].parents = (e.turns[1].id, beside.id)
    Mappo(whiten=False).credit([e])
    assert each(e) == pytest.approx([0.4565, 0.27, 0.27, 0.6], abs=1e-6)
    e.turns[1].rewards = {"r": 0.3}  # .1 more for all up to this stage, shared in it
    Mappo(whiten=False).credit([e])
    assert each(e) == pytest.approx([0.4565 + 0.095, 0.37, 0.37, 0.6], abs=1e-6)


def test_one_agent_with_one_turn_is_ppo_with_a_value_for_the_turn():
    """Degenerate."""
    episodes = []
    for i, (value, reward) in enumerate([(0.3, 1.0), (0.6, 0.0), (0.1, 0.5)]):
        one = turn("solver", episode=f"{i}", tokens=[7], rewards={"r": 0.1 * i})
        one.training.values = floats([value])
        episodes.append(episode(i, [one], {"team": reward}))
    for whiten in (False, True):
        Ppo(whiten=whiten).credit(episodes)
        expected = said(episodes, "solver")
        Mappo(whiten=whiten).credit(episodes)
        assert said(episodes, "solver") == pytest.approx(expected, abs=1e-6)


def test_agents_with_outcomes_of_their_own_have_values_of_their_own():
    """One output per agent; each agent's chain runs over all stages with its own numbers."""
    e = talk([0.0, 0.0, 0.0], rewards={"a": 1.0, "b": -1.0, "team": 0.5})
    by_agent = {"a": [0.5, 0.7, 0.4], "b": [-0.2, 0.1, -0.3]}
    for k, one in enumerate(e.turns):
        one.training.team_values = {agent: values[k] for agent, values in by_agent.items()}
    Mappo(whiten=False, lam=0.5, gamma=0.9).credit([e])

    def chain(values, outcome):
        deltas = [0.9 * values[1] - values[0], 0.9 * values[2] - values[1], outcome - values[2]]
        return [sum(0.45 ** (k - i) * deltas[k] for k in range(i, 3)) for i in range(3)]

    a, b = chain(by_agent["a"], 1.5), chain(by_agent["b"], -0.5)
    assert each(e) == pytest.approx([a[0], b[1], a[2]], abs=1e-6)
    assert each(e, "returns")[1] == pytest.approx(b[1] + 0.1, abs=1e-6)


def test_lambda_and_gamma_of_one_give_the_return_less_the_value():
    draw = np.random.default_rng(0)
    for _ in range(10):
        e = talk(draw.normal(size=5), outcome=draw.normal())
        for one in e.turns:
            one.rewards = {"r": draw.normal()}
        Mappo(whiten=False, lam=1.0).credit([e])
        scores = [t.score for t in e.turns]
        scores[-1] += e.rewards["team"]
        expected = [sum(scores[k:]) - float(t.training.values[0]) for k, t in enumerate(e.turns)]
        assert each(e) == pytest.approx(expected, abs=1e-5)


def test_whitening_counts_every_turn_of_the_step_once():
    episodes = [talk([0.5, 0.7, 0.4], outcome=i % 2, name=f"{i}") for i in range(4)]
    for e in episodes:
        e.turns[0].tokens = np.repeat(e.turns[0].tokens, 5)
        e.turns[0].training.values = np.repeat(e.turns[0].training.values, 5)
    Mappo(whiten=False).credit(episodes)
    plain = [a for e in episodes for a in each(e)]
    Mappo().credit(episodes)
    expected = (np.array(plain) - np.mean(plain)) / np.std(plain, ddof=1)
    assert [a for e in episodes for a in each(e)] == pytest.approx(expected.tolist(), abs=1e-5)
    assert each(episodes[0], "returns")[2] == pytest.approx(0.0, abs=1e-6)


def coins(first: int, second: int, *, central: bool):
    """r = a1 + a2: what agent 2 gets where the critic knows, or does not know, what agent 1 did."""
    e = talk([1.0, first + 0.5 if central else 1.0], outcome=first + second)
    Mappo(whiten=False).credit([e])
    return each(e)[1]


def test_a_value_that_knows_what_was_said_halves_the_variance():
    """Section 4: fair coins; .25 against .5."""
    for central, expected in ((True, 0.25), (False, 0.5)):
        found = [coins(a, b, central=central) for a in (0, 1) for b in (0, 1)]
        assert (np.mean(found), np.var(found)) == pytest.approx((0.0, expected), abs=1e-6)


class Means:
    """A critic that remembers the mean target of every history of actions."""

    agents = ("a", "b")

    def __init__(self) -> None:
        self.table = {}

    async def annotate(self, episodes) -> None:
        for e in episodes:
            for k, one in enumerate(e.turns):
                values = self.table.get(history(e, k), dict.fromkeys(self.agents, 0.0))
                one.training.team_values = values

    def fit(self, episodes, targets, *, epochs):
        found = defaultdict(list)
        for e, target in zip(episodes, targets, strict=True):
            for k, row in enumerate(target):
                found[history(e, k)].append(row)
        self.table = {
            key: dict(zip(self.agents, np.mean(rows, axis=0), strict=True))
            for key, rows in found.items()
        }
        return {"epochs": float(epochs)}


def history(e, k: int):
    return tuple(int(t.tokens[0]) for t in e.turns[:k])


@pytest.mark.parametrize(("lam", "rounds"), [(1.0, 1), (0.0, 4), (0.95, 60)])
def test_the_central_value_becomes_that_of_the_matrix_game(lam, rounds):
    """2.10: R = [[0, 2], [2, -1]], P(1) = .3: V .75, then .6 or 1.1 once agent 1 has spoken."""
    episodes = []
    for (first, second), times in {(0, 0): 49, (0, 1): 21, (1, 0): 21, (1, 1): 9}.items():
        for _ in range(times):
            name = f"{len(episodes)}"
            e = talk([0, 0], outcome=[[0, 2], [2, -1]][first][second], name=name)
            for one, token in zip(e.turns, (first, second), strict=True):
                one.tokens = np.array([token], dtype=np.int32)
            episodes.append(e)
    algorithm, critic = Mappo(whiten=False, lam=lam, critic_epochs=3), Means()
    for _ in range(rounds):
        asyncio.run(critic.annotate(episodes))
        algorithm.credit(episodes)
        assert algorithm.fit(episodes, critic) == {"epochs": 3.0}
    values = {key: found["a"] for key, found in critic.table.items()}
    assert values == pytest.approx({(): 0.75, (0,): 0.6, (1,): 1.1}, abs=1e-6)
    asyncio.run(critic.annotate(episodes))
    algorithm.credit(episodes)
    for e in episodes:  # the advantage lemma of 2.13: A1 + A2 = R - V
        if lam == 0.0:
            assert sum(each(e)) == pytest.approx(e.rewards["team"] - 0.75, abs=1e-5)


def test_the_loss_is_the_clipped_one_and_turns_without_advantage_may_be_skipped():
    one = turn(tokens=[7, 7], advantage=2.0)
    one.training.prox_logprobs = one.logprobs - np.float32(0.5)
    batch = join([[one]])
    outputs = Outputs(torch.from_numpy(batch.prox_logprobs + np.float32(0.5)))
    loss = Mappo(correction="none").loss(batch, outputs)
    assert loss.total.item() / loss.count == pytest.approx(-2.4, rel=1e-5)
    assert Mappo().skips_zero


def test_the_defaults_are_those_of_the_specification():
    mappo = Mappo()
    assert (mappo.gamma, mappo.lam, mappo.clip_low, mappo.clip_high) == (1.0, 0.95, 0.2, 0.2)
    assert (mappo.epochs, mappo.entropy, mappo.critic, mappo.min_group) == (4, 0.0, "team", 1)
