"""VDN and QMIX as policy gradients: credit from what the utility critic noted on the turns."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.algorithms.mixing import Qmix, Vdn
from rolecall.core.types import Utility
from rolecall.learners.packing import pack
from tests.algorithms.small import floats, said, team_step
from tests.toy import episode, turn

BOTH = pytest.mark.parametrize("kind", [Vdn, Qmix])


def noted(agent: str, gain: float, *, name: str, path=(0,), mixed_q=0.0, mixed_v=0.0, parents=()):
    one = turn(agent, episode=name, path=path)
    one.training.utility = Utility(0.0, 0.0, gain=gain, mixed_q=mixed_q, mixed_v=mixed_v)
    one.parents = tuple(t.id for t in parents)
    return one


def pairs_of(gains):
    """Two agents who did not hear each other, an episode for each pair of gains."""
    return [
        episode(i, [noted("a", a, name=f"{i}"), noted("b", b, name=f"{i}", path=(1,))], {"team": 0})
        for i, (a, b) in enumerate(gains)
    ]


@BOTH
def test_gains_are_normalised_agent_by_agent(kind):
    """q (1.2, .3), v (1.0, .5): +.2, -.2; a second episode with nothing gained."""
    episodes = pairs_of([(0.2, -0.2), (0.0, 0.0)])
    kind().credit(episodes)
    assert said(episodes, "a") == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert said(episodes, "b") == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    larger = pairs_of([(0.2, -20.0), (0.0, 0.0)])
    kind().credit(larger)
    assert said(larger, "a") == said(episodes, "a")


@BOTH
def test_one_agent_under_vdn_is_an_actor_critic(kind):
    """Degenerate: A = q - v, of which the norm over the step's turns is taken."""
    draw = np.random.default_rng(0)
    q, v = draw.normal(size=6), draw.normal(size=6)
    episodes = [
        episode(i, [noted("a", q[i] - v[i], name=f"{i}", mixed_q=q[i], mixed_v=v[i])], {"team": 1})
        for i in range(6)
    ]
    kind().credit(episodes)
    gain = q - v
    expected = (gain - gain.mean()) / (gain.std(ddof=1) + 1e-6)
    assert said(episodes, "a") == pytest.approx(expected.tolist(), abs=1e-6)


def two_stages(first: float, last: float, mixed_q: float, *, name: str = "0", outcome: float = 0.0):
    one = noted("a", 0.0, name=name, mixed_q=9.0, mixed_v=0.3)
    two = noted("b", 0.0, name=name, path=(1,), mixed_q=mixed_q, mixed_v=0.7, parents=[one])
    one.rewards, two.rewards = {"r": first}, {"r": last}
    return episode(int(name), [one, two], {"team": outcome})


@BOTH
def test_known_target(kind):
    """r (0, 1), Qbar .4, gamma .9, lam .8 -> y_0 = .792; also where the 1 is the outcome."""
    algorithm = kind(gamma=0.9, lam=0.8)
    assert algorithm.targets(two_stages(0, 1, 0.4)) == pytest.approx([0.792, 1.0])
    assert algorithm.targets(two_stages(0, 0, 0.4, outcome=1.0)) == pytest.approx([0.792, 1.0])


@BOTH
def test_turns_of_one_stage_share_its_reward_and_its_target(kind):
    e = two_stages(0.25, 1, 0.4)
    beside = noted("c", 0.0, name="0", path=(0, 1))
    beside.rewards = {"r": -0.25}
    e.turns.insert(1, beside)
    assert kind(gamma=0.9, lam=0.8).targets(e) == pytest.approx([0.792, 1.0])


@BOTH
def test_outcomes_of_single_agents_count_with_their_mean(kind):
    """Own: the team's value is one number."""
    e = two_stages(0, 0, 0.4)
    e.rewards = {"a": 3.0, "b": -1.0, "team": 1.0}
    assert kind(lam=1.0).targets(e) == pytest.approx([2.0, 2.0])


@BOTH
def test_eta_mixes_in_what_the_team_earned_above_the_mixed_v(kind):
    """eta A_i + (1 - eta) (y - f(v)): gains 1 and 0, targets 2 and 1, mixed v .5 and .1."""

    def episodes():
        return [
            episode(0, [noted("a", 1.0, name="0", mixed_v=0.5)], {"team": 2.0}),
            episode(1, [noted("a", 0.0, name="1", mixed_v=0.1)], {"team": 1.0}),
            episode(2, [noted("a", 0.0, name="2", mixed_v=0.0)], {"team": 0.0}),
        ]

    for eta in (0.0, 0.3, 1.0):
        made = episodes()
        kind(eta=eta).credit(made)
        raw = np.array([eta * g + (1 - eta) * s for g, s in ((1, 1.5), (0, 0.9), (0, 0.0))])
        expected = (raw - raw.mean()) / (raw.std(ddof=1) + 1e-6)
        assert said(made, "a") == pytest.approx(expected.tolist(), abs=1e-6)


class Recorder:
    """A critic that keeps what it is taught."""

    def fit(self, episodes, targets, *, epochs):
        self.targets, self.epochs = targets, epochs
        return {"loss": 0.0}


@BOTH
def test_the_critic_is_taught_the_targets(kind):
    critic = Recorder()
    episodes = [two_stages(0, 1, 0.4), two_stages(1, 0, 0.2, name="1")]
    kind(gamma=0.9, lam=0.8, critic_epochs=7).fit(episodes, critic)
    assert critic.epochs == 7
    expected = [[0.792, 1.0], [1 + 0.9 * (0.2 * 0.2 + 0.8 * 0), 0.0]]
    for found, y in zip(critic.targets, expected, strict=True):
        assert found == pytest.approx(y)


@BOTH
def test_turns_with_a_value_more_than_ids_can_be_packed(kind):
    """2.14: `values` [T + 1], v first and q last: the one exception to [T]."""
    episodes = team_step()
    turns = [t for e in episodes for t in e.turns if t.agent == "solver"]
    for one in turns:
        one.training.values = floats([0.1] + [0.0] * (len(one.tokens) - 1) + [0.9])
    kind().credit(episodes)
    batches = pack(turns, budget=1000)
    assert sum(batch.num_turns for batch in batches) == len(turns)


def test_what_they_declare():
    assert (Vdn.critic, Vdn.mixer, Qmix.mixer, Vdn.min_group) == ("mixer", "vdn", "qmix", 1)
    assert (Vdn().lam, Vdn().eta, Vdn().gamma) == (0.8, 1.0, 1.0)
