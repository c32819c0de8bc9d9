"""Every pair of `mean` and `std`, beside a computation of its own that knows no groups."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from rolecall.algorithms.dr_grpo import DrGrpo
from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.rloo import Rloo
from tests.algorithms.small import said, singles, team_step
from tests.toy import episode, turn

LEVELS = ("task", "agent", "global")


def uneven():
    """Agents with outcomes of their own, and an attempt that ended before the verifier spoke."""
    draw = np.random.default_rng(1)
    episodes = team_step()
    for e in episodes:
        e.rewards["verifier"] = float(draw.uniform())
    del episodes[2].turns[1:]
    return episodes


def oracle(episodes, mean: str, std: str, *, count: str) -> dict[str, float]:
    """From the definition, turn by turn."""
    rows = [(e, t) for e in episodes for t in e.turns]
    pooled = "task" in (mean, std) or "global" in (mean, std)

    def x(e, t) -> float:
        outcome = e.rewards["team"] + e.rewards.get(t.agent, 0.0)
        return outcome + (0.0 if pooled else sum(t.rewards.values()))

    def owner(e, t) -> str:
        return t.agent if not pooled or t.agent in e.rewards else "team"

    def same(level: str, one, other) -> bool:
        return {
            "global": True,
            "task": one.task == other.task,
            "agent": (one.task, one.agent) == (other.task, other.agent),
        }[level]

    def samples(level: str, t) -> list[float]:
        here = [(e, o) for e, o in rows if same(level, t, o)]
        if count == "turn":
            return [x(e, o) for e, o in here]
        names = {(e.id, owner(e, o)) for e, o in here}
        return [
            statistics.fmean(x(e, o) for e, o in here if (e.id, owner(e, o)) == name)
            for name in sorted(names)
        ]

    found = {}
    for e, t in rows:
        value = x(e, t) - statistics.fmean(samples(mean, t))
        if std != "none":
            value /= statistics.stdev(samples(std, t)) + 1e-6
        if pooled:
            own = [
                sum(o.rewards.values()) for _, o in rows if same(mean, t, o) and o.agent == t.agent
            ]
            value += sum(t.rewards.values()) - statistics.fmean(own)
        found[t.id] = value
    return found


@pytest.mark.parametrize("count", ["turn", "episode_agent"])
@pytest.mark.parametrize("std", [*LEVELS, "none"])
@pytest.mark.parametrize("mean", LEVELS)
def test_every_normalisation_is_its_definition(mean, std, count):
    """Two tasks, four attempts, three ragged turns of two agents with own rewards."""
    episodes = uneven()
    expected = oracle(episodes, mean, std, count=count)
    Grpo(mean=mean, std=std, count=count).credit(episodes)
    for e in episodes:
        for t in e.turns:
            assert t.advantages.tolist() == pytest.approx(
                [expected[t.id]] * len(t.tokens), abs=2e-6
            )


def test_all_of_them_differ():
    found = {}
    for mean in LEVELS:
        for std in (*LEVELS, "none"):
            episodes = uneven()
            Grpo(mean=mean, std=std, count="turn").credit(episodes)
            found[mean, std] = [float(t.advantages[0]) for e in episodes for t in e.turns]
    names = list(found)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert np.abs(np.subtract(found[one], found[other])).max() > 1e-3, (one, other)


def test_names_are_members_of_the_family():
    """Dr. MAS is agent x agent, RLOO and Dr. GRPO divide by nothing."""
    for one, other in (
        (DrMas(), Grpo(mean="agent", std="agent", count="turn")),
        (DrGrpo(), Grpo(std="none")),
    ):
        here, there = team_step(), team_step()
        one.credit(here)
        other.credit(there)
        assert [t.advantages.tolist() for e in here for t in e.turns] == [
            t.advantages.tolist() for e in there for t in e.turns
        ]


@pytest.mark.parametrize("std", [*LEVELS, "none"])
@pytest.mark.parametrize("mean", LEVELS)
@pytest.mark.parametrize("value", [0.9, 0.1, 1e9 + 0.1])
@pytest.mark.parametrize("attempts", [1, 5])
def test_equal_scores_earn_exactly_nothing(mean, std, value, attempts):
    episodes = [
        episode(
            i,
            [turn("a", episode=f"{i}"), turn("b", episode=f"{i}", path=(1,))],
            {"team": value},
        )
        for i in range(attempts)
    ]
    Grpo(mean=mean, std=std).credit(episodes)
    assert said(episodes, "a") == said(episodes, "b") == [0.0] * attempts


def test_an_agent_whose_scores_do_not_vary_is_not_blown_up_by_its_own_spread():
    """mean of the task, spread of the agent: b always earns 1, so its spread is 0."""
    episodes = [
        episode(
            i,
            [turn("a", episode=f"{i}"), turn("b", episode=f"{i}", path=(1,))],
            {"a": a, "b": 1.0},
        )
        for i, a in enumerate([0.0, 1.0, 0.0, 1.0])
    ]
    Grpo(mean="task", std="agent").credit(episodes)
    assert said(episodes, "b") == [0.0] * 4
    assert said(episodes, "a") == pytest.approx([-0.75 / 0.57735, 0.25 / 0.57735] * 2, abs=1e-5)


def test_dr_grpo_known_answer_and_its_share_of_rloo():
    """A = (K - 1) / K times RLOO's."""
    episodes = singles([1, 0, 0, 0])
    DrGrpo().credit(episodes)
    assert said(episodes, "solver") == [0.75, -0.25, -0.25, -0.25]
    Rloo().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert (DrGrpo().agg, DrGrpo().clip_low) == ("turn_sum", 0.2)
