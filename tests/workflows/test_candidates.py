"""Several answers to one prompt: tried out in forks, one played, all compared."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from rolecall.agents.agent import Policy
from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Episode, Swap, Task, group_by
from rolecall.engines.local.engine import LocalEngine
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play, replay
from rolecall.runtime.call_tree import IdleBarrier, task_factory
from rolecall.workflows.base import workflow
from rolecall.workflows.candidates import play_best
from tests.toy import agent, language_model


class Dice(World):
    """Every step ends in a state that no second step would reach again."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    async def reset(self) -> Observation:
        return Observation("start")

    async def fork(self) -> World:
        fork = Dice()
        fork.moves = list(self.moves)
        return fork

    async def step(self, agent: str, action: str) -> Observation:
        if action.startswith("!"):
            raise RuntimeError("off the board")
        self.moves.append(f"{agent}:{action}:{random.SystemRandom().random()}")
        text = " ".join(self.moves)
        return Observation(text, reward=len(action) / 10, team=float("w" in action))

    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": float(len(self.moves))}


class Table:
    def __init__(self) -> None:
        self.worlds: list[World] = []

    def tasks(self, split: str) -> list[Task]:
        return [Task("t", "go")]

    def open(self, task: Task, *, seed: int) -> World:
        self.worlds.append(Dice())
        return self.worlds[-1]


@workflow(candidates=True, forks=True)
async def two_moves(team, task, world, number: int = 4):
    first = await play_best(team.one, world, task.prompt, number=number)
    return await play_best(team.two, world, task.prompt, first, number=number)


def context(folder, says: list[str], flow=two_moves) -> RolloutContext:
    tokenizer = load_tokenizer(str(folder))
    left = list(says)
    engine = ScriptedEngine(tokenizer, lambda request: left.pop(0))
    policy = Policy("p", tokenizer, engine)
    team = {name: agent(name, policy, sampling=Sampling(max_tokens=30)) for name in ("one", "two")}
    return RolloutContext(team, flow, {}, Table(), rewards={})


def run(coroutine):
    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await coroutine

    return asyncio.run(main())


SAYS = ["a", "aww", "aw", "aww", "x", "xx", "!", "xw"]


def test_the_best_is_played_and_the_rest_stays_as_data(model_folder):
    made = context(model_folder, SAYS)
    episode = run(play(made, Task("t", "go")))
    assert episode.error is None
    assert [(t.text, t.chosen, t.index) for t in episode.turns] == [
        ("a", False, 0), ("aww", True, 0), ("aw", False, 0), ("aww", False, 0),
        ("x", False, 0), ("xx", False, 0), ("!", False, 0), ("xw", True, 0),
    ]  # fmt: skip
    assert "RuntimeError: off the board" in episode.turns[6].candidate_error
    assert episode.answer == "xw"


def test_the_world_goes_on_from_the_played_child_not_from_a_second_step(model_folder):
    made = context(model_folder, SAYS)
    episode = run(play(made, Task("t", "go")))
    [world] = made.environment.worlds
    assert [move.rsplit(":", 1)[0] for move in world.moves] == ["one:aww", "two:xw"]
    assert episode.rewards == {}
    assert episode.scores["team"] == 2.0
    said = [turn for turn in episode.turns if turn.agent == "two"]
    assert all("[one]\naww" in turn.messages[-1].content for turn in said)


def test_one_prompt_and_k_members_a_group_and_a_failed_one_in_none(model_folder):
    episode = run(play(context(model_folder, SAYS), Task("t", "go")))
    groups = group_by(episode.turns, "task", "agent", "index", "state")
    assert [len(group) for group in groups] == [4, 4]
    for group in groups:
        assert len({turn.prompt.tobytes() for turn in group}) == 1
        assert len({turn.parents for turn in group}) == 1
    algorithm = AtGrpo()
    algorithm.credit([episode])
    assert [turn.advantages is None for turn in groups[1]] == [False, False, True, False]
    first, second = (
        [float(np.mean(t.advantages)) for t in group if t.advantages is not None]
        for group in groups
    )
    scores = np.array([0.1, 1.3, 1.2, 1.3])
    assert first == pytest.approx((scores - scores.mean()) / (scores.std(ddof=1) + 1e-6), abs=1e-5)
    scores = np.array([0.1, 0.2, 1.2])
    wanted = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
    assert second == pytest.approx(wanted, abs=1e-5)


def test_candidates_without_a_choice_or_with_two_are_errors_of_the_episode(model_folder):
    @workflow(candidates=True)
    async def never(team, task, world):
        await team.one.candidates(2)(task.prompt)
        return await team.two("x")

    @workflow(candidates=True)
    async def twice(team, task, world):
        drawn = await team.one.candidates(2)(task.prompt)
        team.choose(drawn[0])
        team.choose(drawn[1])
        return await team.two("x")

    @workflow(candidates=True)
    async def none(team, task, world):
        await team.one.candidates(0)(task.prompt)
        return await team.two("x")

    @workflow
    async def undeclared(team, task, world):
        drawn = await team.one.candidates(2)(task.prompt)
        return team.choose(drawn[0])

    def error(flow) -> str:
        return run(play(context(model_folder, SAYS, flow), Task("t", "go"))).error or ""

    assert "does not declare it: write @workflow(candidates=True)" in error(undeclared)
    assert "drew candidates of 'one' and chose none" in error(never)
    assert "another one was chosen already" in error(twice)
    assert "0 candidates of 'one': at least 1" in error(none)


def test_a_world_that_cannot_fork_says_so(model_folder):
    with pytest.raises(ValueError, match="World cannot fork"):
        asyncio.run(World().fork())


def test_later_turns_do_not_see_candidates_that_were_not_played(model_folder):
    @workflow(candidates=True)
    async def remembers(team, task, world):
        drawn = await team.one.candidates(2)(task.prompt)
        team.choose(drawn[1])
        return await team.one("again")

    made = context(model_folder, ["a", "b", "c"], remembers)
    made.agents["one"].memory = True
    episode = run(play(made, Task("t", "go")))
    assert [m.content for m in episode.turns[2].messages] == ["go", "b", "again"]
    assert [t.index for t in episode.turns] == [0, 0, 1]


def sampled(folder) -> RolloutContext:
    """Two agents who really sample, with parallel calls in the workflow."""
    model = language_model(folder)
    barrier = IdleBarrier()
    engine = LocalEngine({"p": model}, barrier=barrier)
    policy = Policy("p", model.tokenizer, engine)
    team = {name: agent(name, policy) for name in ("one", "two")}

    @workflow(candidates=True)
    async def talk(team, task, world):
        drafts = await asyncio.gather(team.one(task.prompt), team.two(task.prompt))
        drawn = await team.one.candidates(3)(task.prompt, *drafts)
        best = team.choose(drawn[1])
        return await team.two(task.prompt, best)

    return RolloutContext(team, talk, {}, Table(), rewards={}, barrier=barrier)


def ids_of(episode: Episode) -> list[tuple]:
    return [
        (t.agent, t.path, t.prompt.tolist(), t.tokens.tolist(), t.chosen, t.index)
        for t in episode.turns
    ]


def test_a_replay_without_a_change_reproduces_the_episode_id_for_id(model_folder):
    made = sampled(model_folder)
    episode = run(play(made, Task("t", "go"), step=3, attempt=2, retry=1))
    made = sampled(model_folder)  # nothing is left of the first engine
    again = run(replay(made, episode, None))
    assert len(episode.turns) == 6
    assert ids_of(again) == ids_of(episode)


def test_a_replay_changes_one_call_and_what_follows_from_it(model_folder):
    async def several() -> list[Episode]:
        made = sampled(model_folder)
        episode = await play(made, Task("t", "go"))
        first = episode.turns[0]
        swaps = [Swap(first.path, first.text), Swap(first.path, "something else")]
        swaps += [Swap(first.path, None, draw) for draw in range(3)]
        return [episode, *[await replay(made, episode, swap) for swap in swaps]]

    episode, same, other, *draws = run(several())
    assert same.turns[0].text == episode.turns[0].text
    assert other.error is None
    assert other.turns[0].text == "something else"
    assert other.turns[1].tokens.tolist() == episode.turns[1].tokens.tolist()
    for later in other.turns[2:5]:
        assert any("something else" in message.content for message in later.messages)
    new = [draw.turns[0] for draw in draws]
    assert len({tuple(turn.tokens.tolist()) for turn in (*new, episode.turns[0])}) > 1
    assert len({turn.prompt.tobytes() for turn in new}) == 1
