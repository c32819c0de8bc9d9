"""AT-GRPO: a turn is compared with the candidates drawn at that very point."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.leader_only import LeaderOnly
from tests.toy import episode, turn


def drawn(scores, *, agent="solver", task="x", name="0", path=(0,), chosen=0, **changes):
    """Candidates of one call; a score is what the world gave for it."""
    made = []
    for k, score in enumerate(scores):
        one = turn(agent, task=task, episode=name, path=(*path, k), rewards={"own": score})
        one.candidate, one.chosen = k, k == chosen
        for key, value in changes.items():
            setattr(one, key, value)
        made.append(one)
    return made


def found(turns) -> list[float]:
    return [float(t.advantages[0]) for t in turns]


def test_known_answer():
    """r_team [1, 1, 0, 0], r_local [.5, 0, .5, 0], alpha 1."""
    turns = drawn([0.0] * 4)
    for one, team, local in zip(turns, [1, 1, 0, 0], [0.5, 0, 0.5, 0], strict=True):
        one.rewards = {"team": team, "own": local}
    AtGrpo().credit([episode(0, turns, {"team": 100.0})])
    expected = [1.161893, 0.387298, -0.387298, -1.161893]
    assert found(turns) == pytest.approx(expected, abs=1.5e-6)


def test_the_outcome_of_the_episode_is_none_of_a_candidates_business():
    first, second = drawn([1, 0]), drawn([1, 0], name="1")
    AtGrpo().credit([episode(0, first, {"team": 1.0}), episode(1, second, {"team": -5.0})])
    assert found(first) == found(second) == pytest.approx([0.707106, -0.707106], abs=1.5e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "other"},
        {"index": 1},
        {"agent": "verifier"},
        {"task": "y"},
        {"prompt": np.array([5, 7], dtype=np.int32)},
        {"prompt": np.array([5], dtype=np.int32)},
    ],
)
def test_nobody_is_compared_across_points(changes):
    """Rule 5, scope prompt: one wild candidate at another point moves nobody here."""
    here, there = drawn([1, 0.5, 0]), drawn([50.0], path=(1,), **changes)
    AtGrpo().credit([episode(0, [*here, *there], {})])
    assert found(here) == pytest.approx([0.999998, 0, -0.999998], abs=1.5e-6)
    assert found(there) == [0.0]


@pytest.mark.parametrize("rule", [AtGrpo(), LeaderOnly()])
def test_the_same_prompt_in_another_attempt_is_another_point(rule):
    """Its world may differ in what nobody sees: one pays everybody here, the other one nobody."""
    first, second = drawn([1, 1]), drawn([0, 0], name="1")
    rule.credit([episode(0, first, {}), episode(1, second, {})])
    assert found(first + second) == [0.0] * 4


def test_one_candidate_has_nobody_to_be_compared_with():
    turns = drawn([1.0])
    AtGrpo().credit([episode(0, turns, {})])
    assert found(turns) == [0.0]


def test_every_candidate_is_trained_and_not_only_the_one_that_was_played():
    turns = drawn([0, 0, 1], chosen=2)
    AtGrpo().credit([episode(0, turns, {})])
    assert all(np.any(t.advantages) for t in turns)
    algorithm = AtGrpo()
    assert (algorithm.agg, algorithm.kl, algorithm.clip_low, algorithm.clip_high) == (
        "token", 0.0, 0.2, 0.2,
    )  # fmt: skip


def signal(algorithm, *, equal: bool, groups: int = 500):
    """Mean, spread and share of positive signs over groups of mean A * d log p / d logit."""
    draw = np.random.default_rng(0)
    episodes, actions = [], draw.integers(0, 2, (groups, 8))
    states = draw.integers(0, 10, (groups, 8))
    for g in range(groups):
        here = states[g, :1].repeat(8) if equal else states[g]
        scores = 10.0 * here + actions[g]
        turns = drawn(scores.tolist(), task=f"{g}", name=f"{g}")
        episodes.append(episode(0, turns, {}, task=f"{g}"))
    algorithm.credit(episodes)
    advantages = np.array([found(e.turns) for e in episodes])
    gradients = (advantages * (actions - 0.5)).mean(axis=1)
    return gradients.mean(), gradients.std(), (gradients > 0).mean()


def test_equal_states_make_the_signal_that_mixed_states_drown():
    """Section 4: per node .432, spread .057, right sign 99 %; mixed .004, .164, 51 %."""
    mean, spread, right = signal(AtGrpo(), equal=True)
    assert (mean, spread) == pytest.approx((0.432, 0.057), abs=0.015)
    assert right > 0.98
    mean, spread, right = signal(AtGrpo(), equal=False)
    assert mean == pytest.approx(0.004, abs=0.025)
    assert spread == pytest.approx(0.164, abs=0.015)
    assert right < 0.6


def test_on_played_turns_with_one_prompt_it_is_grpo_of_own_rewards():
    mine, theirs = drawn([0.3, 0.9, 0.1]), drawn([0.3, 0.9, 0.1])
    for k, one in enumerate(theirs):
        one.chosen = True
        one.episode = f"{k}"
    AtGrpo().credit([episode(0, mine, {})])
    Grpo().credit([episode(k, [one], {}) for k, one in enumerate(theirs)])
    assert found(mine) == found(theirs)
