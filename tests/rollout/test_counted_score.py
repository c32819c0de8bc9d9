"""One score of an episode counts, everywhere: the own score of `evaluation.agent`, if it is set."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.agents.agent import Policy
from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.load import load
from rolecall.config.schema import CurriculumConfig
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.monitor import metrics
from rolecall.monitor.reading import best, worst
from rolecall.monitor.two_runs import pair_tasks
from rolecall.rollout.curriculum import PassRates
from rolecall.rollout.episodes import Rollout, RolloutContext, play
from rolecall.rollout.evaluation_summary import summarise
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.episode_io import from_json, read_parquet, to_json, write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.workflows.base import workflow
from tests.toy import agent, crew_config, write


class Duel:
    """Whoever the task names wins: what one player gains the other loses."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{winner} wins", "duel", winner) for winner in ("ann", "ben", "nobody")]

    def open(self, task: Task, *, seed: int) -> World:
        return DuelWorld(task)


class DuelWorld(World):
    def __init__(self, task: Task) -> None:
        self.task = task

    async def score(self, episode: Episode) -> dict[str, float]:
        gains = {"ann": {"ann": 1.0, "ben": -1.0}, "ben": {"ann": -1.0, "ben": 1.0}}
        return gains.get(self.task.answer, {"ann": 0.0, "ben": 0.0})


@workflow
async def duel(team, task, world):
    await team.ann(task.prompt)
    return await team.ben(task.prompt)


def played(folder, counted: str | None, *, attempts: int = 1) -> list[Episode]:
    """Ann wins one task, Ben one, and one is a draw."""
    tokenizer = load_tokenizer(str(folder))
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda request: "x"))
    team = {name: agent(name, policy) for name in ("ann", "ben")}
    context = RolloutContext(team, duel, {}, Duel(), rewards={}, counted_agent=counted)

    async def main() -> list[Episode]:
        asyncio.get_running_loop().set_task_factory(task_factory)
        return [
            await play(context, task, step=1, attempt=number)
            for task in Duel().tasks("train")
            for number in range(attempts)
        ]

    return asyncio.run(main())


def test_without_a_counted_agent_a_zero_sum_game_scores_nothing(model_folder):
    assert [e.headline for e in played(model_folder, None)] == [0.0, 0.0, 0.0]


def test_the_own_score_of_the_counted_agent_is_the_headline_also_when_it_was_stored(
    model_folder, tmp_path
):
    for name, expected in (("ann", [1.0, -1.0, 0.0]), ("ben", [-1.0, 1.0, 0.0])):
        episodes = played(model_folder, name)
        assert [e.headline for e in episodes] == expected
        assert [from_json(to_json(e)).headline for e in episodes] == expected
        file = tmp_path / f"{name}.parquet"
        write_parquet(file, episodes, step=1)
        assert [e.headline for e in read_parquet(file)] == expected


def test_an_agent_without_a_score_of_its_own_has_the_teams():
    episode = Episode("e", Task("x", ""), 0, 0, scores={"team": 0.5}, counted_agent="ann")
    assert episode.headline == 0.5


def test_the_curriculum_tells_tasks_that_are_won_from_those_that_are_lost(model_folder):
    known = PassRates(CurriculumConfig(newest=1.0), lag=0)
    known.update(1, played(model_folder, "ann"))
    assert known.rate("ann wins", step=2) == 1.0
    assert known.rate("ben wins", step=2) == 0.0


def test_metrics_of_training_and_evaluations_count_the_same_score(model_folder):
    episodes = played(model_folder, "ann")[:1]
    assert metrics.rollout_metrics(Rollout(groups=[episodes]))["score"] == 1.0
    options = EvaluationConfig(samples=1, k=1, agent="ann")
    assert summarise([episodes], options)["avg@1"] == 1.0


def test_two_runs_are_compared_by_the_score_that_counts(model_folder, tmp_path):
    """The same game: Ann of run b wins what Ben of run a loses."""
    folders = []
    for name, counted in (("a", "ben"), ("b", "ann")):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        ann_wins = played(model_folder, counted)[0]
        write_parquet(folder.path / "evaluation-000001.parquet", [ann_wins], step=1)
        folders.append(folder)
    found = pair_tasks(*folders)
    assert found is not None
    assert found.difference.mean == 2.0


def test_the_best_and_the_worst_conversation_are_a_won_and_a_lost_game(model_folder, tmp_path):
    file = tmp_path / "step-000001.parquet"
    write_parquet(file, played(model_folder, "ben"), step=1)
    assert [talk.task for talk in best(file, 1)] == ["ben wins"]
    assert [talk.task for talk in worst(file, 1)] == ["ann wins"]


@pytest.mark.parametrize("name", [None, "last"])
def test_a_run_plays_with_the_agent_of_its_evaluation(model_folder, tmp_path, name):
    config = crew_config(model_folder)
    config["evaluation"]["agent"] = name
    run = build(validate(load(write(tmp_path / "c.yaml", config))))
    assert run.context.counted_agent == name
