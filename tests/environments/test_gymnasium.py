"""Environments of Gymnasium become worlds, and environments of ours become Gymnasium's."""

from __future__ import annotations

import time
import warnings
from typing import ClassVar

import gymnasium
import pytest
from gymnasium.spaces import Box, Text
from gymnasium.utils.env_checker import check_env

from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Task
from rolecall.environments.gymnasium.environment import NOTICE, GymnasiumEnvironment
from rolecall.environments.gymnasium.export import AsGymnasium
from rolecall.environments.text.environment import TextEnvironment
from rolecall.environments.tool_use.environment import ToolUseEnvironment
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.workflows.multi_turn import multi_turn
from tests.environments.contexts import play_in, said_by
from tests.rollout.test_rollout import run

pytestmark = pytest.mark.slow

HERE = __file__
MOVES = ["left", "down", "right", "up"]
LAKE = {"make": "FrozenLake-v1", "options": {"is_slippery": False}, "actions": MOVES}
SHORTEST = ["[down]", "[down]", "[right]", "I go [Right]", "[down]", "[right]"]


class Echo(gymnasium.Env):
    """Text for text: pays 1 for a text that repeats what is shown; two turns, at most `most`."""

    observation_space = Text(9)

    closed: ClassVar[list[str]] = []  # words of the environments that were closed

    def __init__(self, pause_s: float = 0.0, space: gymnasium.Space | None = None) -> None:
        self.action_space = space or Text(9)
        self.pause_s, self.word = pause_s, "unused"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word, self.turns = str(self.np_random.integers(1000)), 0
        return self.word, {}

    def step(self, action):
        time.sleep(self.pause_s)
        if action == "crash":
            raise RuntimeError("crashed")
        self.turns += 1
        return f"not {self.word}", float(action == self.word), self.turns == 2, False, {}

    def close(self):
        self.closed.append(self.word)


def shouted(observation) -> str:
    return f"Square {observation}!"


def continuous() -> gymnasium.Env:
    return Echo(space=Box(0, 1))


def play_lake(folder, *says: str, turns: int = 8, **options) -> Episode:
    environment = GymnasiumEnvironment(**LAKE | options)
    team = said_by(folder, actor=list(says))
    return play_in(environment, environment.tasks("train")[0], multi_turn, team,
                   {"max_turns": turns})  # fmt: skip


def test_a_registered_environment_is_played_with_named_actions(model_folder):
    episode = play_lake(
        model_folder, *SHORTEST, rules="Walk to the last square.", show=f"{HERE}:shouted"
    )
    assert episode.scores["team"] == 1.0
    assert len(episode.turns) == 6
    told = [turn.messages[-1].content for turn in episode.turns]
    assert "Walk to the last square.\nYou may: [left], [down], [right], [up]" in told[0]
    assert "Square 0!" in told[0]
    assert [f"Square {n}!" in text for n, text in zip((4, 8, 9), told[1:], strict=False)] == (
        [True] * 3
    )
    assert all(turn.rewards == {} for turn in episode.turns)  # paid once, by the outcome


def test_a_hole_ends_the_episode_without_reward(model_folder):
    episode = play_lake(model_folder, "[right]", "[down]", "[down]")
    assert (len(episode.turns), episode.scores["team"]) == (2, 0.0)


@pytest.mark.parametrize("bad", ["left", "[west]", "[left] or [up]", "", "<think>[left]</think>"])
def test_an_illegal_action_is_told_counted_and_penalised_and_does_nothing(model_folder, bad):
    episode = play_lake(model_folder, bad, *SHORTEST, penalty=0.25)
    assert episode.scores["team"] == 1.0
    assert episode.metrics["count/illegal_actions"] == 1
    assert episode.turns[0].world_rewards == {"step": -0.25}
    assert NOTICE in episode.turns[1].messages[-1].content


def test_steps_can_be_paid_at_once_on_the_scale_of_the_score(model_folder):
    episode = play_lake(model_folder, *SHORTEST, low=0.0, high=2.0, step_rewards=True)
    assert [turn.score for turn in episode.turns] == [0.0] * 5 + [0.5]
    assert episode.scores["team"] == 0.5


def test_a_sum_beyond_the_declared_range_is_an_error_and_not_a_score(model_folder):
    environment = GymnasiumEnvironment(**LAKE, low=-1.0, high=0.5)
    team = said_by(model_folder, actor=SHORTEST)
    episode = run(play(RolloutContext(team, multi_turn, {}, environment, rewards={}),
                       environment.tasks("train")[0]))  # fmt: skip
    assert "paid 1, which is not between low -1 and high 0.5" in episode.error


def test_texts_are_actions_where_the_space_is_of_texts(model_folder):
    environment = GymnasiumEnvironment(f"{HERE}:Echo", high=2.0)
    task = environment.tasks("test")[3]
    env = Echo()
    word, _ = env.reset(seed=task.info["seed"])
    says = ["much too long a text", f"<think>hm</think> {word}", word]
    episode = play_in(environment, task, multi_turn, said_by(model_folder, actor=says))
    assert word in episode.turns[0].messages[-1].content
    assert episode.scores["team"] == 1.0
    assert episode.metrics["count/illegal_actions"] == 1


def test_tasks_are_seeds_that_the_splits_do_not_share():
    environment = GymnasiumEnvironment(**LAKE, test_size=100)
    train, test = environment.tasks("train")[:500], environment.tasks("test")
    assert len(test) == 100
    seeds = [{task.info["seed"] for task in tasks} for tasks in (train, test)]
    assert [len(found) for found in seeds] == [500, 100]
    assert not seeds[0] & seeds[1]


def test_an_environment_that_hangs_costs_its_episode_alone_and_is_left_behind(model_folder):
    environment = GymnasiumEnvironment(f"{HERE}:Echo", {"pause_s": 5.0})
    closed = type(environment.play.make()).closed
    before = len(closed)
    team = said_by(model_folder, actor=["word"])
    context = RolloutContext(team, multi_turn, {}, environment, rewards={}, timeout_s=0.3)
    began = time.monotonic()
    episode = run(play(context, environment.tasks("train")[0]))
    assert episode.error.startswith("TimeoutError")
    assert time.monotonic() - began < 3
    assert len(closed) == before  # closing it might hang, too


def test_an_environment_that_raises_is_an_error_of_its_episode_and_is_closed(model_folder):
    path = f"{HERE}:Echo"
    environment = GymnasiumEnvironment(path)
    task = environment.tasks("train")[7]
    word, _ = (env := Echo()).reset(seed=task.info["seed"])
    made = type(environment.play.make())  # the module as the import path has it
    context = RolloutContext(
        said_by(model_folder, actor=["crash"]), multi_turn, {}, environment, rewards={}
    )
    episode = run(play(context, task))
    assert episode.error.startswith("RuntimeError: crashed")
    assert made.closed[-1] == env.word == word


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"make": "FrozenLake-v1", "actions": ["left", "right"]}, "4 different names"),
        ({"make": "FrozenLake-v1", "actions": ["a", "A", "b", "c"]}, "4 different names"),
        ({"make": f"{HERE}:continuous"}, "must be Discrete or Text"),
        ({"make": f"{HERE}:Echo", "actions": ["a"]}, "no names"),
        ({"make": "FrozenLake-v1", "low": 1.0}, "must be below"),
        ({"make": "NoSuchLake-v1"}, "cannot be made"),
        ({"make": "FrozenLake-v1", "options": {"depth": 3}}, "cannot be made .*depth"),
    ],
)
def test_what_cannot_be_played_is_an_error(options, told):
    with pytest.raises(ValueError, match=told):
        GymnasiumEnvironment(**options)


def test_an_import_path_that_leads_nowhere_is_an_error_that_names_its_key():
    with pytest.raises(ConfigError, match=r"environment\.make"):
        GymnasiumEnvironment("no.such.module:Env")


@pytest.mark.parametrize("environment", [TextEnvironment, ToolUseEnvironment])
def test_an_environment_of_ours_passes_the_checks_of_gymnasium(environment):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = AsGymnasium(environment(), max_chars=2000)
        check_env(env, skip_render_check=True)
    env.close()


def test_the_outcome_is_paid_with_the_last_action():
    env = AsGymnasium(TextEnvironment(), "test", max_turns=2)
    text, info = env.reset(seed=1, options={"task": 5})
    task: Task = TextEnvironment().tasks("test")[5]
    assert (text, info) == (task.prompt, {"task": task.id})
    assert env.step("Nothing.")[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, _ = env.step(f"<think>x</think>{task.answer}")
    assert (reward, terminated, truncated) == (1.0, False, True)
    assert env.reset(seed=1)[0] == env.reset(seed=1)[0] != env.reset(seed=2)[0]
    env.close()


def test_a_world_that_ends_by_itself_terminates():
    env = AsGymnasium(ToolUseEnvironment(), "test")
    env.reset(options={"task": 0})
    answer = ToolUseEnvironment().tasks("test")[0].answer
    assert env.step("Let me see.")[1:4] == (0.0, False, False)
    assert env.step(f"<answer>{answer}</answer>")[1:4] == (1.0, True, False)
    env.close()
