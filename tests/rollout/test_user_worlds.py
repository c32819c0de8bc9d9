"""Worlds of a user: plain methods, rewards of steps in place of a score, and wrong forms."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Task
from rolecall.rewards.correct import correct
from rolecall.rollout.episodes import play
from rolecall.rollout.user_worlds import check_worlds
from rolecall.workflows.multi_turn import multi_turn
from tests.rollout.test_rollout import context, run

TASK = Task("one", "Go.")


class Opens:
    """An environment whose worlds are of one class."""

    def __init__(self, kind):
        self.kind = kind

    def tasks(self, split):
        return [TASK]

    def open(self, task, *, seed):
        return self.kind()


class Steps(World):
    """Pays 1, 2, 3 for its steps, with plain methods."""

    def __init__(self):
        self.number = 0

    def reset(self):
        return Observation("begin")

    def step(self, agent, action):
        self.number += 1
        return Observation(f"{self.number}", reward=float(self.number), done=self.number == 3)


class Scored(Steps):
    def score(self, episode):
        return {"team": 0.25}


def play_steps(folder, kind):
    made = context(folder, flow=multi_turn, environment=Opens(kind))
    actor = replace(made.agents["solver"], name="actor", role="actor")
    made = replace(made, agents={"actor": actor}, rewards={"correct": (correct, 1.0)})
    episode = run(play(made, TASK))
    assert episode.error is None
    return episode


def test_plain_methods_of_a_world_are_awaited_like_async_ones(model_folder):
    episode = play_steps(model_folder, Scored)
    assert [turn.score for turn in episode.turns] == [1.0, 2.0, 3.0]
    assert episode.scores == {"team": 0.25}
    assert episode.headline == 0.25
    assert episode.total(episode.turns[0]) == 1.25


def test_without_score_the_rewards_of_steps_are_the_score_and_are_paid_once(model_folder):
    episode = play_steps(model_folder, Steps)
    assert episode.headline == 6.0
    assert episode.rewards == {}
    assert [episode.total(turn) for turn in episode.turns] == [1.0, 2.0, 3.0]


def test_a_step_that_returns_no_observation_is_named_with_its_line():
    class Tuples(World):
        def step(self, agent, action):
            return Observation("x"), 1.0

    with pytest.raises(TypeError, match=r"Tuples.step \(test_user_worlds.py:\d+\) ret"):
        asyncio.run(Tuples().step("actor", "go"))


class Bare:
    async def score(self, episode):
        return {"team": 1.0}


class Silent(World):
    pass


class Lonely(World):
    def step(self, action):
        return Observation("x", reward=1.0)


class Broken(World):
    def __init__(self):
        raise KeyError("rows")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Bare, "is no World; write class Bare(rolecall.World)"),
        (Silent, "has neither score(episode) nor step(agent, action)"),
        (Lonely, "is called as step(agent, action); write def step(self, agent, action)"),
        (Broken, "open: KeyError: 'rows'"),
    ],
)
def test_a_world_of_the_wrong_form_is_refused_before_the_first_step(kind, said):
    with pytest.raises(ConfigError) as raised:
        asyncio.run(check_worlds(Opens(kind), [TASK]))
    [problem] = raised.value.problems
    assert problem.startswith("environment: ")
    assert said in problem
    assert "test_user_worlds.py:" in problem
