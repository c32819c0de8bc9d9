"""Credit of episodes and of states: known answers, ragged chains, and what is no state."""

from __future__ import annotations

import logging
import statistics

import pytest

from rolecall.algorithms.gigpo import Gigpo
from rolecall.algorithms.grpo import Grpo
from tests.algorithms.small import said, team_step
from tests.toy import episode, turn


def walk(
    number: int, states: list[str], rewards: list[float], outcome: float = 0.0, agent="walker"
):
    made = []
    for place, (state, reward) in enumerate(zip(states, rewards, strict=True)):
        one = turn(agent, episode=f"{number}", path=(place,), rewards={"step": reward})
        one.state, one.index = state, place
        made.append(one)
    return episode(number, made, {"team": outcome})


def two_walks():
    return [walk(0, ["s0", "s1"], [0, 1]), walk(1, ["s0", "s2"], [0, 0])]


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        ("none", [0.975, 0.5, -0.975, -0.5]),
        ("task", [1.414212, 0.707106, -1.414212, -0.707106]),
    ],
)
def test_known_answer(std, expected):
    episodes = two_walks()
    Gigpo(std=std).credit(episodes)
    assert said(episodes, "walker") == pytest.approx(expected, abs=1.5e-6)


def test_ragged_walks_of_two_agents_by_hand():
    """Returns run over an agent's own turns; the outcome comes with its last one."""
    draw = [[0.3, -0.2, 0.1], [0.0, 0.5], [0.4, 0.2, 0.6]]
    states = [["s0", "s1", "s0"], ["s0", "s1"], ["s1", "s0", "s2"]]
    outcomes = [1.0, 0.0, 0.5]
    made = [walk(i, states[i], draw[i], outcomes[i]) for i in range(3)]
    for number, e in enumerate(made):  # another agent, in the same states, between them
        for place in range(2):
            other = turn("other", episode=f"{number}", path=(place, 9))
            other.state, other.index = "s0", place
            other.rewards = {"step": 0.1 * number}
            e.turns.insert(2 * place + 1, other)
    Gigpo(omega=0.5, gamma=0.9).credit(made)
    returns = {}
    for e, rewards, outcome in zip(made, draw, outcomes, strict=True):
        for agent, own in (("walker", rewards), ("other", [0.1 * int(e.attempt)] * 2)):
            mine = [t for t in e.turns if t.agent == agent]
            for place, one in enumerate(mine):
                later = own[place:]
                returns[one.id] = sum(0.9**k * r for k, r in enumerate(later)) + outcome * 0.9 ** (
                    len(later) - 1
                )
    whole = {  # of a trajectory: each is one sample, however many turns it has
        (e.id, agent): e.rewards["team"] + sum(t.score for t in e.turns if t.agent == agent)
        for e in made
        for agent in ("walker", "other")
    }
    for e in made:
        for one in e.turns:
            same = [t for o in made for t in o.turns if t.agent == one.agent]
            part = whole[e.id, one.agent] - statistics.fmean(whole[o.id, one.agent] for o in made)
            group = [returns[t.id] for t in same if t.state == one.state]
            step = returns[one.id] - statistics.fmean(group)
            assert float(one.advantages[0]) == pytest.approx(part + 0.5 * step, abs=1e-6)


@pytest.mark.parametrize(("std", "expected"), [("none", 0.5), ("task", 0.707106)])
@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_a_teammate_changes_nothing_of_an_agents_credit(std, expected, omega):
    """The episode's part of the known answer, with a second agent that speaks unevenly often."""
    alone, beside = two_walks(), two_walks()
    for number, e in enumerate(beside):
        for place in range(3 - number):
            other = turn("other", episode=f"{number}", path=(place, 9), rewards={"step": 4.0})
            e.turns.append(other)
    rule = Gigpo(std=std, omega=omega)
    rule.join_team(["walker", "other"])
    rule.credit(alone)
    rule.credit(beside)
    assert said(beside, "walker") == said(alone, "walker")
    if omega == 0.0:
        assert said(beside, "walker") == pytest.approx([expected] * 2 + [-expected] * 2, abs=2e-6)


def test_states_met_once_leave_grpo_without_a_spread():
    episodes, plain = team_step(), team_step()
    for e in episodes:
        for number, one in enumerate(e.turns):
            one.state = f"{e.id}:{number}"
    Gigpo().credit(episodes)
    for e in plain:
        totals = {
            agent: sum(t.score for t in e.turns if t.agent == agent)
            for agent in ("solver", "verifier")
        }
        for one in e.turns:
            one.rewards = {"own": totals[one.agent]}
    Grpo(mean="agent", std="none").credit(plain)
    for e, other in zip(episodes, plain, strict=True):
        for one, there in zip(e.turns, other.turns, strict=True):
            assert one.advantages == pytest.approx(there.advantages, abs=1e-6)


def test_who_is_shown_no_world_meets_no_state_twice(caplog):
    """An agent's first and third turn in a conversation are not one state."""
    episodes = [walk(i, ["", ""], [0.0, float(i)]) for i in range(2)]
    rule = Gigpo()
    rule.credit(episodes)
    assert said(episodes, "walker") == [-0.5, -0.5, 0.5, 0.5]
    assert rule.metrics() == {"states_met_once": 1.0}
    with caplog.at_level(logging.WARNING, logger="rolecall.notices"):
        rule.after_step(1)
        rule.after_step(2)
    assert [r.getMessage() for r in caplog.records] == [
        "gigpo: 100 % of the turns met a state that no other attempt met, so that GRPO would do "
        "the same; a world says what its states are by `Observation.key`"
    ]


def test_equal_episodes_leave_the_credit_of_states():
    """Both earn 1 in all, one of them earlier."""
    episodes = [walk(0, ["s0", "s1"], [1, 0]), walk(1, ["s0", "s1"], [0, 1])]
    Gigpo().credit(episodes)
    assert said(episodes, "walker") == pytest.approx([0.025, -0.5, -0.025, 0.5])


def test_omega_zero_is_the_episodes_part():
    episodes = two_walks()
    Gigpo(omega=0.0).credit(episodes)
    assert said(episodes, "walker") == [0.5, 0.5, -0.5, -0.5]


def test_similar_observations_are_one_state():
    """Three searches found the same passage, one of them with a word less; the fourth another.

    "the cat sat" and "the cat sits" match in 10 characters of 11 and 12: 2 * 10 / 23 = 0.87.
    """
    texts = ["the cat sat", "the cat sits", "the cat sat", "a dog"]
    episodes = [walk(i, [f"s{text}"], [reward]) for i, (text, reward) in
                enumerate(zip(texts, [1.0, 0.0, 0.0, 1.0], strict=True))]  # fmt: skip
    for e, text in zip(episodes, texts, strict=True):
        e.turns[0].observation = text
    whole = [0.5, -0.5, -0.5, 0.5]  # less the mean of the four episodes
    for similarity, states in (
        (1.0, [0.5, 0.0, -0.5, 0.0]),  # equal texts: the first and the third
        (0.88, [0.5, 0.0, -0.5, 0.0]),
        (0.86, [2 / 3, -1 / 3, -1 / 3, 0.0]),
    ):
        Gigpo(similarity=similarity).credit(episodes)
        expected = [a + b for a, b in zip(whole, states, strict=True)]
        assert said(episodes, "walker") == pytest.approx(expected), similarity


def test_a_state_without_a_text_is_similar_to_no_other():
    episodes = [walk(0, ["north"], [1.0]), walk(1, ["south"], [0.0]), walk(2, ["north"], [0.0])]
    Gigpo(similarity=0.1).credit(episodes)
    assert said(episodes, "walker") == pytest.approx([2 / 3 + 0.5, -1 / 3, -1 / 3 - 0.5])
