"""ReMax: the baseline is what a greedy play of the task earns."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rolecall.algorithms.remax import ReMax
from rolecall.core.types import GREEDY
from rolecall.rollout.episodes import play
from rolecall.rollout.episodes import replay as replay_episode
from tests.algorithms.small import said, singles
from tests.rollout.test_rollout import context, run, tasks


def credited(rewards, *, greedy=None, error=None):
    episodes = singles(rewards)
    asked = []

    async def replay(episode, swap):
        asked.append(swap)
        return replace(episode, rewards={"team": greedy}, error=error)

    algorithm = ReMax()
    asyncio.run(algorithm.prepare(episodes, replay))
    algorithm.credit(episodes)
    assert asked == [GREEDY]
    return said(episodes, "solver"), algorithm.metrics()


@pytest.mark.parametrize(
    ("rewards", "greedy", "expected"),
    [
        ([1, 0, 0], 1.0, [0, -1, -1]),
        ([1, 0, 0], 0.0, [1, 0, 0]),
        ([1], 0.25, [0.75]),
        ([1, 1], 1.0, [0, 0]),
    ],
)
def test_known_answers(rewards, greedy, expected):
    advantages, metrics = credited(rewards, greedy=greedy)
    assert advantages == pytest.approx(expected)
    assert metrics == {"greedy_return": greedy, "failed_replays": 0.0}


def test_where_the_greedy_play_fails_the_others_are_the_baseline():
    advantages, _ = credited([1, 0, 0], greedy=1.0, error="ValueError: no")
    assert advantages == pytest.approx([1, -0.5, -0.5])


def test_the_greedy_play_is_at_temperature_0_and_is_not_trained(model_folder):
    seen = []

    def reply(request):
        seen.append(request.sampling.temperature)
        return "c"

    made = context(model_folder, reply=reply)
    episode = run(play(made, tasks(1)[0]))
    greedy = run(replay_episode(made, episode, GREEDY))
    assert seen == [1.0, 0.0]
    assert greedy.id != episode.id
    assert greedy.seed == episode.seed
    assert all(turn.advantages is None for turn in greedy.turns)
    assert made.agents["solver"].sampling.temperature == 1.0
