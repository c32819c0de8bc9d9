"""M-GRPO: a rollout counts the same however often it called, and the planner does not notice."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.mgrpo import MGrpo
from rolecall.core.types import Episode, calls
from tests.algorithms.small import one_batch, said
from tests.toy import episode, turn


def rollout(number: int, scores: list[float], *, team: float = 0.0, length: int = 2) -> Episode:
    """A planner's turn, and a call of the worker for each score."""
    name = f"e{number}"
    plan = turn("planner", episode=name, path=(0,))
    made = [plan]
    for place, score in enumerate(scores, start=1):
        one = turn(
            "worker", episode=name, path=(place,), rewards={"own": score}, tokens=[7] * length
        )
        one.parents = (plan.id,)
        made.append(one)
    return episode(number, made, {"team": team})


def weights(episodes: list[Episode], agent: str) -> list[float]:
    return [t.weight for e in episodes for t in e.turns if t.agent == agent]


def test_known_answer_of_one_call_against_three():
    episodes = [rollout(0, [1.0]), rollout(1, [0.0, 0.0, 0.0])]
    MGrpo(calls=2).credit(episodes)
    assert said(episodes, "worker") == pytest.approx([0.866025] + [-0.866025] * 3, abs=2e-6)
    MGrpo(calls=None).credit(episodes)
    assert said(episodes, "worker") == pytest.approx([1.5] + [-0.5] * 3, abs=1e-5)
    assert weights(episodes, "worker") == [1.0] * 4
    MGrpo().credit(episodes)  # two samples, as in GRPO
    assert said(episodes, "worker") == pytest.approx([0.707106] + [-0.707106] * 3, abs=1e-5)


def test_the_calls_of_a_rollout_share_its_weight_and_the_sum_stays():
    episodes = [rollout(0, [1.0]), rollout(1, [0.0, 0.0, 0.0])]
    MGrpo().credit(episodes)
    assert weights(episodes, "worker") == pytest.approx([2.0] + [2 / 3] * 3)
    assert weights(episodes, "planner") == [1.0, 1.0]
    longer = [rollout(0, [1.0], length=4), rollout(1, [0.0, 0.0])]
    MGrpo().credit(longer)
    sizes = [len(t.tokens) for e in longer for t in e.turns if t.agent == "worker"]
    assert np.dot(weights(longer, "worker"), sizes) == pytest.approx(sum(sizes))
    assert weights(longer, "worker")[0] == pytest.approx(2 * weights(longer, "worker")[1])


def test_weights_are_the_mean_of_what_repeating_and_dropping_at_random_gives():
    """Each rollout's calls are repeated or dropped until there are D; the mean of the scores."""
    draw = np.random.default_rng(0)
    scores = [draw.normal(size=d).tolist() for d in (1, 2, 5, 8)]
    episodes = [rollout(i, s) for i, s in enumerate(scores)]
    MGrpo(calls=4).credit(episodes)
    weighted = np.average(
        [t.score for e in episodes for t in e.turns if t.agent == "worker"],
        weights=weights(episodes, "worker"),
    )

    def aligned(own: list[float]) -> list[float]:
        if len(own) >= 4:
            return draw.choice(own, 4, replace=False).tolist()
        return own + draw.choice(own, 4 - len(own)).tolist()

    means = [np.mean([x for own in scores for x in aligned(own)]) for _ in range(4000)]
    assert weighted == pytest.approx(np.mean(means), abs=4 * np.std(means) / 4000**0.5)


def test_the_planner_is_compared_as_in_grpo_whatever_it_calls():
    many = [rollout(i, [0.3] * (i + 1), team=i % 2) for i in range(4)]
    none = [rollout(i, [], team=i % 2) for i in range(4)]
    MGrpo().credit(many)
    Grpo().credit(none)
    assert said(many, "planner") == said(none, "planner")


def test_rollouts_without_a_call_and_agents_called_in_one_rollout_alone():
    episodes = [rollout(0, [1.0, 0.0], team=1.0), rollout(1, [])]
    MGrpo().credit(episodes)
    assert said(episodes, "worker") == [0.0, 0.0]
    assert said(episodes, "planner") == pytest.approx([0.707106, -0.707106], abs=1e-5)


def test_turns_with_tools_are_one_call():
    plan = turn("planner", path=(0,))
    asks, answers, again = (turn("worker", path=(1, k)) for k in range(3))
    asks.parents, answers.parents, again.parents = (plan.id,), (asks.id,), (plan.id,)
    assert calls([answers, asks, again]) == [[answers, asks], [again]]


def test_grpo_on_one_scalar_counts_a_rollout_once_however_many_workers_it_had():
    """MATPO: every id of every child carries the scalar's advantage."""
    two, three = ([rollout(0, [0.0] * d, team=1.0), rollout(1, [0.0])] for d in (2, 3))
    algorithm = Grpo(agg="token")
    for episodes in (two, three):
        algorithm.credit(episodes)
        assert said(episodes, "planner") == pytest.approx([0.707106, -0.707106], abs=1e-5)
    assert said(three, "worker") == pytest.approx([0.707106] * 3 + [-0.707106], abs=1e-5)
    batch = one_batch([t for e in two for t in e.turns], algorithm)
    assert np.unique(np.abs(batch.advantages[batch.mask == 1])).tolist() == pytest.approx(
        [0.707106], abs=1e-5
    )
