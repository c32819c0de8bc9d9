"""A bad rollout is data: typed, counted, repeated, dropped; never a crash and never a reward."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rolecall.agents.agent import Policy
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.rollout.group_player import collect
from rolecall.runtime.call_tree import task_factory
from rolecall.workflows.base import workflow
from tests.toy import Letters, agent, solo


def context(
    folder, *, flow=solo, environment=None, reply=lambda request: "c", **options
) -> RolloutContext:
    tokenizer = load_tokenizer(str(folder))
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, reply))
    return RolloutContext(
        {"solver": agent("solver", policy)},
        flow,
        {},
        environment or Letters(),
        rewards=options.pop("rewards", {"correct": (correct, 1.0)}),
        **options,
    )


async def correct(episode, world):
    return {"team": episode.scores["team"]}


def run(coroutine):
    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await coroutine

    return asyncio.run(main())


def tasks(number: int) -> list[Task]:
    return Letters().tasks("train")[:number]


def test_an_episode_records_turns_rewards_and_answer(model_folder):
    episode = run(play(context(model_folder), tasks(1)[0], step=3, attempt=2))
    assert episode.id == "3:train-0:2"
    assert episode.answer == "c"
    assert episode.rewards == {"team": 1.0}
    assert episode.scores["team"] == 1.0
    [turn] = episode.turns
    assert (turn.agent, turn.path, turn.id) == ("solver", (0,), "3:train-0:2/0")
    assert turn.text == "c"
    assert turn.tokens[-1] == load_tokenizer(str(model_folder)).eos_token_id


def test_weights_multiply_rewards_and_several_rewards_add_up(model_folder):
    async def bonus(episode, world):
        return {"solver": 2.0, "team": 1.0}

    made = context(model_folder, rewards={"correct": (correct, 0.5), "bonus": (bonus, 0.1)})
    episode = run(play(made, tasks(1)[0]))
    assert episode.rewards == pytest.approx({"team": 0.6, "solver": 0.2})
    assert episode.total(episode.turns[0]) == pytest.approx(0.8)


def test_a_failing_world_is_retried_with_a_new_seed_then_dropped_and_counted(model_folder):
    always = context(model_folder, environment=Letters(fail_share=1.0))
    rollout = run(collect(always, tasks(2), step=1, group_size=3, min_group=2))
    assert rollout.groups == []
    assert rollout.num_dropped == 2
    assert rollout.failures == {"ConnectionError": 2 * 3 * 3}
    assert [e.error is not None for e in rollout.unused] == [True] * 6
    assert "the world went away" in rollout.first_error
    sometimes = context(model_folder, environment=Letters(fail_share=0.3))
    rollout = run(collect(sometimes, tasks(10), step=1, group_size=4, min_group=2))
    assert rollout.failures["ConnectionError"] > 0
    assert any(":r1" in e.id for e in rollout.episodes)
    assert all(e.error is None for e in rollout.episodes)
    assert len({e.id for e in rollout.episodes}) == len(rollout.episodes)


def test_a_hanging_workflow_times_out_as_a_typed_error(model_folder):
    @workflow
    async def hangs(team, task, world):
        await team.solver(task.prompt)
        await asyncio.sleep(60)

    made = context(model_folder, flow=hangs, timeout_s=0.05)
    episode = run(play(made, tasks(1)[0]))
    assert episode.error is not None
    assert episode.error.startswith("TimeoutError: not ended after 0.")
    assert "rollout.timeout_s is 0.05" in episode.error
    assert episode.rewards == {}
    assert len(episode.turns) == 1


def test_a_reward_that_is_not_finite_is_an_error_of_the_episode(model_folder):
    async def broken(episode, world):
        return {"team": float("nan")}

    episode = run(play(context(model_folder, rewards={"broken": (broken, 1.0)}), tasks(1)[0]))
    assert episode.error is not None
    assert "'broken'" in episode.error
    assert "nan" in episode.error


def test_index_counts_an_agents_own_turns_by_path(model_folder):
    @workflow
    async def parallel(team, task, world):
        async def slow():
            await asyncio.sleep(0.03)
            return await team.solver("slow")

        await asyncio.gather(slow(), team.solver("fast"))
        return await team.solver("last")

    episode = run(play(context(model_folder, flow=parallel), tasks(1)[0]))
    assert [(t.messages[0].content, t.index) for t in episode.turns] == [
        ("slow", 0),
        ("fast", 1),
        ("last", 2),
    ]


def test_memory_puts_earlier_exchanges_before_a_call(model_folder):
    @workflow
    async def twice(team, task, world):
        await team.solver("one")
        return await team.solver("two")

    made = context(model_folder, flow=twice)
    made.agents["solver"].memory = True
    first, second = run(play(made, tasks(1)[0])).turns
    assert [m.content for m in second.messages] == ["one", "c", "two"]
    whole = np.concatenate([first.prompt, first.tokens])
    assert second.prompt[: len(whole)].tolist() == whole.tolist()


def test_calling_an_agent_that_is_not_there_names_those_that_are(model_folder):
    @workflow
    async def wrong(team, task, world):
        name = "nobody"
        return await team[name](task.prompt)

    episode = run(play(context(model_folder, flow=wrong), tasks(1)[0]))
    assert "no agent 'nobody' (it has: solver)" in episode.error


def test_a_world_is_closed_whatever_happens(model_folder):
    closed = []

    class Closing(Letters):
        def open(self, task, *, seed):
            class It(World):
                async def score(self, episode):
                    raise ValueError("no score")

                async def close(self):
                    closed.append(task.id)

            return It()

    run(play(context(model_folder, environment=Closing()), tasks(1)[0]))
    assert closed == ["train-0"]
