"""Counterfactual baseline: the matrix game, replayed with something else in a turn's place."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.rloo import Rloo
from rolecall.core.types import Episode, Swap
from tests.algorithms.small import said
from tests.toy import episode, turn

PAYOFF = [[0.0, 2.0], [2.0, -1.0]]
AGENTS = ("a", "b")
DRAWS = [0] * 7 + [1] * 3  # what ten new samples of a policy with P(1) = .3 say


def played(a: int, b: int, *, number: int = 0, task: str = "x") -> Episode:
    turns = [
        turn(agent, episode=f"{task}{number}", task=task, tokens=[action], path=(k,))
        for k, (agent, action) in enumerate(zip(AGENTS, (a, b), strict=True))
    ]
    return episode(number, turns, {"team": PAYOFF[a][b]}, task=task)


async def replay(e: Episode, swap: Swap | None) -> Episode:
    """The game again, with one other action."""
    actions = [int(t.tokens[0]) for t in e.turns]
    if swap is not None:
        actions[swap.path[0]] = DRAWS[swap.draw] if swap.text is None else int(swap.text)
    return replace(e, rewards={"team": PAYOFF[actions[0]][actions[1]]})


def swapping(text: str = "0", **options) -> Counterfactual:
    return Counterfactual(
        **{"baseline": "text", "text": text, "fraction": 1.0, "scale": False, **options}
    )


def marginal() -> Counterfactual:
    return Counterfactual(replays=10, fraction=1.0, scale=False)


def credited(algorithm, episodes, play=replay):
    asyncio.run(algorithm.prepare(episodes, play))
    algorithm.credit(episodes)
    return episodes


@pytest.mark.parametrize(
    ("algorithm", "joint", "expected"),
    [
        (swapping(), (1, 1), {"a": -3.0, "b": -3.0}),
        (marginal(), (1, 1), {"a": -2.1, "b": -2.1}),
        (swapping(), (0, 1), {"b": 2.0}),
        (marginal(), (0, 1), {"b": 1.4}),
    ],
)
def test_known_answers(algorithm, joint, expected):
    episodes = credited(algorithm, [played(*joint)])
    for agent, advantage in expected.items():
        assert said(episodes, agent) == pytest.approx([advantage], abs=1e-6)


def test_the_same_text_again_gives_exactly_zero():
    """Degenerate."""
    for action in (0, 1):
        episodes = credited(swapping(f"{action}"), [played(action, action)])
        assert said(episodes, "a") == said(episodes, "b") == [0.0]


def moments(algorithm) -> tuple[float, float]:
    """Mean and variance of A d log p / d logit of agent a's action 1, over all that can happen."""
    joint = {(a, b): (0.3 if a else 0.7) * (0.3 if b else 0.7) for a in (0, 1) for b in (0, 1)}
    episodes = [played(*both, number=i, task=f"{i}") for i, both in enumerate(joint)]
    credited(algorithm, episodes)
    gradients = [
        advantage * (0.7 if a else -0.3)
        for advantage, (a, _) in zip(said(episodes, "a"), joint, strict=True)
    ]
    mean = np.average(gradients, weights=list(joint.values()))
    return mean, np.average((gradients - mean) ** 2, weights=list(joint.values()))


@pytest.mark.parametrize(
    ("algorithm", "variance"), [(swapping(), 0.797), (marginal(), 0.416)], ids=["swap", "marginal"]
)
def test_every_baseline_is_unbiased_and_not_every_one_lowers_the_variance(algorithm, variance):
    """2.20: the expected gradient is .105; without a baseline the variance is .520."""
    mean, found = moments(algorithm)
    assert mean == pytest.approx(0.105, abs=1e-6)
    assert found == pytest.approx(variance, abs=6e-4)


def dummy(noise, *, fresh: bool):
    """r = a1 + noise: agent b is irrelevant."""
    draw = np.random.default_rng(1)
    episodes = [
        played(int(draw.integers(0, 2)), int(draw.integers(0, 2)), number=i % 2, task=f"{i // 2}")
        for i in range(len(noise))
    ]
    luck = {}
    for e, n in zip(episodes, noise, strict=True):
        luck[e.id] = n
        e.rewards = {"team": int(e.turns[0].tokens[0]) + n}

    async def again(e, swap):
        action = int(swap.text) if swap.path == (0,) else int(e.turns[0].tokens[0])
        later = 0.1 * draw.normal() if fresh else luck[e.id]
        return replace(e, rewards={"team": action + later})

    credited(swapping("1"), episodes, again)
    return np.array(said(episodes, "b"))


def test_a_dummy_agent_gets_nothing_where_the_replay_keeps_the_noise():
    """Section 4: with the same noise 0, with fresh noise 2 * .01."""
    noise = 0.1 * np.random.default_rng(0).normal(size=2000)
    assert not dummy(noise, fresh=False).any()
    assert (dummy(noise, fresh=True) ** 2).mean() == pytest.approx(0.02, abs=0.002)


def test_turns_that_are_not_probed_are_compared_as_in_rloo():
    """The fraction is drawn from the turns' names: the same in every run."""
    episodes = [played(i % 2, i // 2 % 2, number=i) for i in range(200)]
    algorithm = swapping(fraction=0.25)
    credited(algorithm, episodes)
    probed = [t.id for e in episodes for t in e.turns if t.training.replayed is not None]
    assert len(probed) == pytest.approx(100, abs=25)
    again = [played(i % 2, i // 2 % 2, number=i) for i in range(200)]
    asyncio.run(swapping(fraction=0.25).prepare(again, replay))
    assert [t.id for e in again for t in e.turns if t.training.replayed is not None] == probed
    expected = [played(i % 2, i // 2 % 2, number=i) for i in range(200)]
    Rloo().credit(expected)
    for e, other in zip(episodes, expected, strict=True):
        for mine, theirs in zip(e.turns, other.turns, strict=True):
            if mine.id not in probed:
                assert mine.advantages.tolist() == theirs.advantages.tolist()


def test_a_replay_that_fails_leaves_the_turn_to_rloo_and_is_counted():
    async def half_broken(e, swap):
        again = await replay(e, swap)
        return replace(again, error="ConnectionError: gone") if swap.path == (1,) else again

    algorithm, episodes = swapping(), [played(1, 1), played(0, 1, number=1)]
    credited(algorithm, episodes, half_broken)
    assert said(episodes, "a") == pytest.approx([-3.0, 0.0])
    assert said(episodes, "b") == pytest.approx([-3.0, 3.0])  # outcomes -1 and 2
    assert algorithm.metrics()["failed_replays"] == 2.0


def test_a_replay_that_fails_once_leaves_the_mean_to_the_others():
    async def flaky(e, swap):
        again = await replay(e, swap)
        return replace(again, error="TimeoutError: late") if swap.draw < 7 else again

    episodes = credited(marginal(), [played(0, 1)], flaky)
    assert said(episodes, "b") == pytest.approx([2.0 - 2.0])  # of the draws only those of 1 ran


def test_replays_are_of_played_turns_that_are_trained():
    asked = []

    async def watching(e, swap):
        asked.append(swap.path)
        return await replay(e, swap)

    e = played(1, 1)
    e.turns[1].trained = False
    other = turn("a", episode="x0", path=(0, 1))
    other.chosen, other.candidate = False, 1
    e.turns.append(other)
    credited(swapping(), [e], watching)
    assert asked == [(0,)]


def test_a_candidate_is_replayed_by_the_path_of_its_call():
    """`Swap.path` is that of the call, to which all candidates belong."""
    asked = []

    async def watching(e, swap):
        asked.append(swap.path)
        return await replay(e, swap)

    e = played(1, 1)
    e.turns[0].path, e.turns[0].candidate = (0, 3), 3
    credited(swapping(), [e], watching)
    assert asked == [(0,), (1,)]
    assert said([e], "a") == pytest.approx([-3.0])


def test_advantages_are_divided_by_the_spread_of_their_agent():
    episodes = [played(1, 1), played(0, 1, number=1), played(1, 0, number=2)]
    credited(swapping(), episodes)
    plain = {agent: said(episodes, agent) for agent in AGENTS}
    credited(swapping(scale=True), episodes)
    for agent in AGENTS:
        expected = np.array(plain[agent]) / (np.std(plain[agent], ddof=1) + 1e-6)
        assert said(episodes, agent) == pytest.approx(expected.tolist(), rel=1e-6)


def test_both_variances_are_metrics():
    """2.20: not always lower, so log both."""
    algorithm = swapping()
    credited(algorithm, [played(1, 1), played(0, 1, number=1)])
    found = algorithm.metrics()
    # RLOO of outcomes -1 and 2: -3 and 3 for both agents; replays: a -3, 0 and b -3, 2
    assert found["variance_without_replays"] == pytest.approx(9.0)
    assert found["variance_with_replays"] == pytest.approx((2.25 + 6.25) / 2)
    assert Counterfactual().metrics() == {}


def test_what_the_team_gains_by_an_agent_is_a_metric_where_replays_lack_its_words():
    """a: -1 in place of 2, and 2 in place of 0; the mean is -0.5. b: -3 and 0."""
    algorithm = swapping()
    credited(algorithm, [played(1, 1), played(1, 0, number=1)])
    found = algorithm.metrics()
    assert (found["gain/a"], found["gain/b"]) == (-0.5, -1.5)
    again = marginal()
    credited(again, [played(1, 1), played(1, 0, number=1)])
    assert not any(name.startswith("gain/") for name in again.metrics())


def test_own_rewards_stay_with_their_turn():
    e = played(1, 1)
    e.turns[0].rewards = {"invalid": -0.1}
    credited(swapping(), [e])
    assert said([e], "a") == pytest.approx([-3.1])
    assert said([e], "b") == pytest.approx([-3.0])


def test_the_budget_is_small_by_default():
    algorithm = Counterfactual()
    assert (algorithm.replays, algorithm.fraction, algorithm.agg) == (1, 0.25, "token")
    assert math.isclose(algorithm.clip_low, 0.2)
