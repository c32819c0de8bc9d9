"""A reward on a scale of its own: its law, what it pays, and what it does to advantages."""

from __future__ import annotations

import asyncio
from statistics import fmean

import numpy as np
import pytest

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.core.interfaces.environment import World
from rolecall_lab.reproduce.heavy_tailed import LEAST, TAIL, HeavyTailed
from tests.toy import episode, turn

SCORES = [1.0, 1.0, 1.0, 0.0]


def paid(reward: HeavyTailed, score: float, task: str = "x") -> dict[str, float]:
    made = episode(0, [turn("solver"), turn("verifier")], {}, task=task)
    made.scores["team"] = score
    return asyncio.run(reward(made, World()))


def test_factors_follow_their_law_and_do_not_change():
    reward = HeavyTailed("solver")
    factors = np.array([reward.factor(f"t{n}") for n in range(20_000)])
    assert factors.min() >= LEAST
    for bound in (1e-4, 1e-2, 1.0):
        wanted = (bound / LEAST) ** -TAIL
        error = 4 * (wanted / len(factors)) ** 0.5
        assert abs((factors > bound).mean() - wanted) < error
    assert reward.factor("t1") == HeavyTailed("verifier").factor("t1")


@pytest.mark.parametrize("par", [0.0, 1.0])
def test_one_agent_is_paid_in_its_own_units_and_alike_at_par(par):
    reward = HeavyTailed("solver", par=par)
    assert paid(reward, par) == {"solver": par, "verifier": par}
    other = 1.0 - par
    factor = reward.factor("x")
    wanted = par + (other - par) * factor
    assert paid(reward, other) == {"solver": pytest.approx(wanted), "verifier": other}


def advantages(algorithm, factor: float) -> dict[str, list[float]]:
    """Of four attempts at a task with this factor, by agent."""
    episodes = []
    for attempt, score in enumerate(SCORES):
        turns = [turn(a, episode=f"e{attempt}") for a in ("solver", "verifier")]
        rewards = {"solver": 1.0 - (1.0 - score) * factor, "verifier": score}
        episodes.append(episode(attempt, turns, rewards))
    algorithm.credit(episodes)
    return {
        agent: [float(t.advantages[0]) for e in episodes for t in e.turns if t.agent == agent]
        for agent in ("solver", "verifier")
    }


def size(values: list[float]) -> float:
    return fmean(value * value for value in values) ** 0.5


def test_grpo_follows_the_factor_and_drmas_does_not():
    small, large = 1e-4, 1e4
    pooled = {f: size(advantages(Grpo(), f)["solver"]) for f in (small, large)}
    assert pooled[large] > 2.5 * pooled[small]
    own = {f: size(advantages(DrMas(), f)["solver"]) for f in (1e-2, large)}
    assert own[large] == pytest.approx(own[1e-2], rel=1e-3)
    assert size(advantages(Grpo(), large)["verifier"]) < 0.6  # drowned by the other's rewards


@pytest.mark.parametrize("wrong", [{"least": 0.0}, {"tail": -1.0}])
def test_a_law_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="must be above 0"):
        HeavyTailed("solver", **wrong)
