"""What a user's own code returns or raises never ends the run, and is told with its place."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rolecall.agents.parsers import parse_choice
from rolecall.config import registry
from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.load import load
from rolecall.core.interfaces.engine import ContextFullError, Request, Sampling
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Episode, Task, Turn
from rolecall.engines.scripted import ScriptedEngine
from rolecall.monitor import metrics
from rolecall.rollout.episodes import play
from rolecall.rollout.evaluation import evaluate
from rolecall.rollout.group_player import collect
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import Trainer
from rolecall.workflows.base import workflow
from tests.rollout.test_rollout import context, run, tasks
from tests.toy import Letters, LettersWorld, command, solo_config, write
from tests.training.test_trainer import Silent

pytestmark = pytest.mark.slow


def place(function) -> str:
    return f"test_user_code.py:{inspect.unwrap(function).__code__.co_firstlineno}"


class Scored(Letters):
    """A world whose `score` does what a test says."""

    def __init__(self, score):
        super().__init__()
        self.said = score

    def open(self, task, *, seed):
        world = LettersWorld(task, seed, 0.0, 0.0)
        world.score = self.said
        return world


def raising(error: BaseException):
    async def score(episode):
        raise error

    return score


ENDS = [asyncio.CancelledError(), SystemExit(0), GeneratorExit(), StopIteration(), MemoryError()]


@pytest.mark.parametrize("error", ENDS, ids=lambda e: type(e).__name__)
def test_whatever_a_world_raises_is_an_error_of_its_episode_alone(model_folder, error):
    made = context(model_folder, environment=Scored(raising(error)))
    rollout = run(collect(made, tasks(2), step=1, group_size=2, min_group=2))
    # StopIteration becomes RuntimeError where a coroutine raises it.
    assert {e.error.partition(":")[0] for e in rollout.unused} <= {
        type(error).__name__, "RuntimeError",
    }  # fmt: skip
    assert len(rollout.unused) == 4


@pytest.mark.parametrize("start", [asyncio.gather, asyncio.create_task])
def test_an_exit_in_a_task_of_a_workflow_ends_no_other_episode(model_folder, start):
    @workflow
    async def leaves(team, task, world):
        async def leave():
            await asyncio.sleep(0)
            raise SystemExit(0)

        if task.id == "train-0":
            await start(leave())
        return await team.solver(task.prompt)

    rollout = run(collect(context(model_folder, flow=leaves), tasks(2), step=1, group_size=2))
    assert [e.task.id for e in rollout.episodes] == ["train-1"] * 2
    assert all("SystemExit(0) was raised in a task" in e.error for e in rollout.unused)


def test_an_episode_that_is_cancelled_from_outside_stays_cancelled(model_folder):
    @workflow
    async def waits(team, task, world):
        await asyncio.sleep(60)

    async def main():
        playing = asyncio.create_task(play(context(model_folder, flow=waits), tasks(1)[0]))
        await asyncio.sleep(0.05)
        playing.cancel()
        await playing

    with pytest.raises(asyncio.CancelledError):
        run(main())


def test_an_error_says_where_the_users_code_was_and_is_told_once(model_folder, caplog):
    @workflow
    async def breaks(team, task, world):
        said = await team.solver(task.prompt)
        return int(said.text)

    with caplog.at_level(logging.WARNING, "rolecall.notices"):
        made = context(model_folder, flow=breaks)
        rollout = run(collect(made, tasks(3), step=1, group_size=2))
    line = breaks.play.__code__.co_firstlineno + 3
    assert f"test_user_code.py:{line} in breaks)" in rollout.first_error
    told = [r for r in caplog.records if r.name == "rolecall.notices"]
    assert len(told) == 1
    assert "invalid literal for int()" in told[0].getMessage()


def test_a_mistake_in_code_is_not_tried_again_with_other_words(model_folder):
    """Else a team would be trained on the texts that its workflow happens to bear."""

    @workflow
    async def bears_some(team, task, world):
        said = await team.solver(task.prompt)
        return {"good": "c"}[said.text]

    replies = iter(["bad", "good"] * 10)
    made = context(model_folder, flow=bears_some, reply=lambda request: next(replies))
    rollout = run(collect(made, tasks(2), step=1, group_size=3, min_group=1))
    assert rollout.failures == {"KeyError": 3}
    assert len(rollout.episodes) == 3


def returns(value):
    async def score(episode):
        return value

    return score


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "returned a NoneType (None); it must return numbers by agent"),
        (1.0, "returned a float (1.0)"),
        ("yes", "returned a str ('yes')"),
        ({"team": "yes"}, "gives 'team' a str ('yes'), which is not a number"),
        ({"team": torch.tensor(1.0)}, "gives 'team' a Tensor"),
        ({"team": float("nan")}, "gives 'team' nan, which is not a finite number"),
        ({"nobody": 1.0}, "pays 'nobody', who is not in the team (it has: solver"),
    ],
)
def test_scores_and_rewards_of_a_wrong_type_are_named_with_their_place(model_folder, value, said):
    score = returns(value)
    found = run(play(context(model_folder, environment=Scored(score)), tasks(1)[0]))
    assert place(score) in found.error
    assert said in found.error

    async def bonus(episode, world):
        return value

    made = context(model_folder, rewards={"bonus": (bonus, 1.0)})
    found = run(play(made, tasks(1)[0]))
    assert "reward 'bonus' (" in found.error
    assert place(bonus) in found.error
    assert said in found.error
    assert found.rewards == {}


def test_a_reward_that_is_not_async_is_named(model_folder):
    def bonus(episode, world):
        return {"team": 1.0}

    found = run(play(context(model_folder, rewards={"bonus": (bonus, 1.0)}), tasks(1)[0]))
    assert "bonus" in found.error
    assert "async" in found.error


def test_a_forgotten_await_is_no_answer(model_folder):
    @workflow
    async def forgets(team, task, world):
        return team.solver(task.prompt)

    found = run(play(context(model_folder, flow=forgets), tasks(1)[0]))
    assert "never awaited: write `return await ...`" in found.error
    assert place(forgets.play) in found.error

    @workflow
    async def hands_on(team, task, world):
        return await team.solver(team.solver(task.prompt))

    found = run(play(context(model_folder, flow=hands_on), tasks(1)[0]))
    assert "(an await is missing)" in found.error


def test_an_agent_is_told_texts_turns_and_observations_only(model_folder):
    @workflow
    async def counts(team, task, world):
        return await team.solver(task.prompt, 5)

    found = run(play(context(model_folder, flow=counts), tasks(1)[0]))
    assert "agent 'solver' was told 5, a int" in found.error


def test_a_reset_that_returns_no_observation_is_named(model_folder):
    class Bare(Letters):
        def open(self, task, *, seed):
            class It(World):
                async def reset(self):
                    return "hello"

            return It()

    found = run(play(context(model_folder, environment=Bare()), tasks(1)[0]))
    assert "must return an Observation" in found.error


@pytest.mark.parametrize(
    ("tasks_", "said"),
    [
        (["a", "b"], "tasks('train')[0] is a str ('a'); it must be a Task"),
        (iter([Task("a", "?")]), "it must return a list"),
        ([Task("a", "?"), Task("a", "!")], "tasks('train')[1] has the id 'a'"),
        ([Task("a", 5)], "tasks('train')[0].prompt is a int (5); it must be a text"),
        ([Task(3, "?")], "tasks('train')[0].id is a int (3); it must be a text"),
    ],
)
def test_tasks_are_checked_before_anything_is_played(model_folder, tmp_path, capsys, tasks_, said):
    class Given(Letters):
        def tasks(self, split):
            return tasks_

    registry._module(str(Path(__file__))).Given = Given
    config = solo_config(model_folder)
    config["environment"] = {"name": f"{__file__}:Given"}
    assert command("train", write(tmp_path / "c.yaml", config), "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


class Cramped(ScriptedEngine):
    """A model whose context holds few ids."""

    async def generate(self, request: Request):
        if len(request.prompt) > 60:
            raise ContextFullError("the prompt is too long")
        return await super().generate(request)


@workflow
async def grows(team, task, world):
    """Talks until nothing fits any more, unless it says "stop"."""
    heard = [task.prompt]
    while (said := await team.solver(*heard)).text != "stop":
        heard += [said, "And?"]
    return said


def cramped(folder, replies: list[str]):
    answers = iter(replies)
    made = context(folder, flow=grows, reply=lambda request: next(answers))
    policy = made.agents["solver"].policy
    policy.engine = Cramped(policy.tokenizer, policy.engine.reply)
    return made


def test_a_talk_that_outgrows_the_context_is_cut_and_counts(model_folder):
    [task] = tasks(1)
    found = run(play(cramped(model_folder, ["more words here"] * 9), task))
    assert found.error is None
    assert found.turns
    assert found.rewards == {"team": 0.0}
    assert (found.is_truncated, found.metrics["count/context_full"]) == (True, 1.0)


def test_an_evaluation_counts_what_was_cut_and_says_what_it_could_not_score(model_folder):
    """One attempt of two outgrows the context: 0.5 and not 1.0."""
    made = cramped(model_folder, [])

    def reply(request):
        return "stop" if ":0/" in request.id else "more words here"

    made.agents["solver"].policy.engine.reply = reply
    made.environment = Scored(right)
    found = run(evaluate(made, tasks(3), EvaluationConfig(samples=2, k=1)))
    assert found["avg@2"] == 0.5
    assert found["coverage"] == 1.0

    async def sometimes(episode):
        if episode.attempt == 1:
            raise ConnectionError("the world went away")
        return {"team": 1.0}

    made = replace(context(model_folder, environment=Scored(sometimes)), retries=0)
    found = run(evaluate(made, tasks(3), EvaluationConfig(samples=2, k=1)))
    assert found["coverage"] == 0.5
    assert found["failures"] == {"ConnectionError": 3}


async def right(episode: Episode) -> dict[str, float]:
    return {"team": float(episode.answer == "stop")}


def test_a_prompt_that_no_context_holds_is_an_error_not_a_score(model_folder):
    made = cramped(model_folder, ["never asked"])
    found = run(play(made, Task("long", "x" * 500)))
    assert found.error.startswith("ContextFullError")


def test_rewards_are_recorded_by_function_and_verdicts_by_agent(model_folder):
    async def bonus(episode, world):
        episode.turns[0].rewards["tone"] = 0.25
        return {"team": 1.0, "solver": float(episode.attempt)}

    replies = iter(["<verify>approve</verify>"] * 3 + ["<verify>reject</verify>", "what?"] * 9)
    made = context(
        model_folder, rewards={"bonus": (bonus, 0.5)}, reply=lambda request: next(replies)
    )
    made.agents["solver"].parser = parse_choice("verify", "approve", "reject")
    made.agents["solver"].sampling = Sampling(max_tokens=60)
    rollout = run(collect(made, tasks(1), step=1, group_size=5))
    found = metrics.rollout_metrics(rollout)
    assert found["reward/bonus/team"] == 1.0
    assert found["reward/bonus/solver"] == 2.0
    assert found["agent/solver/reward/tone"] == 0.25
    assert found["agent/solver/verdict/approve"] == 0.6
    assert found["agent/solver/verdict/reject"] == 0.2
    assert found["agent/solver/invalid"] == 0.2


async def no_number(episode: Episode, world: World) -> None:
    return None


@workflow
async def breaks_always(team, task, world):
    await team.solver(task.prompt)
    raise RuntimeError("this workflow is broken")


@workflow
async def breaks_mostly(team, task, world):
    said = await team.solver(task.prompt)
    if not task.id.endswith("7"):
        raise KeyError("a step that is missing")
    return said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workflow": f"{__file__}:breaks_always"}, "nothing was trained in 2 steps: 24 of 24"),
        ({"rewards": {f"{__file__}:no_number": 1.0}}, "it must return numbers by agent"),
        ({"environment": {"name": f"{__file__}:Equal"}}, "no turn was ever worth more or less"),
        ({"workflow": f"{__file__}:breaks_mostly"}, "most episodes failed"),
    ],
)
def test_a_run_that_trained_nothing_or_little_ends_with_status_1_and_says_why(
    model_folder, tmp_path, capsys, changes, said
):
    config = solo_config(model_folder, trainer={"steps": 2}, evaluation={"tasks": 0}, **changes)
    config["rollout"] = {"groups": 6 if "mostly" in str(changes) else 3, "group_size": 4}
    file = write(tmp_path / "c.yaml", config)
    assert command("train", file, "--output", tmp_path / "run") == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in last
    if "workflow" in changes:
        assert "test_user_code.py:" in last
    assert (tmp_path / "run/report.html").is_file()


class Equal(Letters):
    """Everybody earns the same, so nobody's turn is worth more."""

    def open(self, task, *, seed):
        world = LettersWorld(task, seed, 0.0, 0.0)
        world.score = returns({"team": 1.0})
        return world


def test_observations_and_quotes_are_told_as_they_are(model_folder):
    @workflow
    async def sees(team, task, world):
        return await team.solver(task.prompt, Observation("a door"))

    found = run(play(context(model_folder, flow=sees), tasks(1)[0]))
    assert found.error is None
    assert found.turns[0].messages[0].content.endswith("a door")
    assert isinstance(found.turns[0], Turn)


def test_a_tracker_that_fails_ends_no_run_and_is_left_out(model_folder, tmp_path, caplog):
    class Broken:
        calls = 0

        def log(self, step, record):
            Broken.calls += 1
            raise ConnectionError("no such server")

        def close(self):
            raise OSError("closed twice")

    config = load(write(tmp_path / "c.yaml", solo_config(model_folder)))
    folder = RunFolder(tmp_path / "run")
    with folder.hold_started(config), caplog.at_level(logging.WARNING, "rolecall.notices"):
        trainer = Trainer(build(validate(config)), folder, display=Silent(), trackers=[Broken()])
        asyncio.run(trainer.train())
    assert Broken.calls == 1
    assert "tracker Broken failed and gets nothing more: ConnectionError" in caplog.text
    assert len(folder.read_metrics()) == 5
