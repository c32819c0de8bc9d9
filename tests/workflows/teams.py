"""A team that says what a test tells it to: for workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rolecall.agents.agent import Policy
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Episode, Task, Turn
from rolecall.engines.scripted import ScriptedEngine
from rolecall.grading.math.answers import extract
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.storage.episode_io import read_parquet
from rolecall.training.evaluating import evaluate_run
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import agent

TASK = Task("t", "What is 3+4?", "7")


class Sum:
    """One task, whose answer is 7."""

    def __init__(self, world: type[World] | None = None) -> None:
        self.world = world or SumWorld

    def tasks(self, split: str) -> list[Task]:
        return [TASK]

    def open(self, task: Task, *, seed: int) -> World:
        return self.world()


class SumWorld(World):
    async def step(self, agent: str, action: str) -> Observation:
        return Observation(f"seen: {action}", team=float(extract(action) == "7"))

    async def equal(self, one: str, other: str) -> bool:
        return float(one) == float(other)

    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": float(extract(episode.answer) == "7")}


def play_team(
    folder,
    flow,
    says: dict[str, list[str]],
    *,
    roles: dict[str, str] | None = None,
    options: dict | None = None,
    world: type[World] | None = None,
    agents: dict[str, dict] | None = None,
    step: int | str = 1,
    attempt: int = 0,
    max_tokens: int = 2000,
) -> Episode:
    """`says`: agent -> what it says call by call; `roles`: agent -> role, by default its name."""
    tokenizer = load_tokenizer(str(folder))
    left = {name: iter(texts) for name, texts in says.items()}
    speak: Callable = lambda request: next(left[request.policy])  # noqa: E731
    team = {}
    for name in says:
        role = (roles or {}).get(name, name)
        policy = Policy(name, tokenizer, ScriptedEngine(tokenizer, speak))
        team[name] = agent(
            name, policy, sampling=Sampling(max_tokens=max_tokens), parser=flow.parsers.get(role),
            **(agents or {}).get(name, {}),
        )  # fmt: skip
        team[name].role = role
    context = RolloutContext(team, flow, options or {}, Sum(world), rewards={})

    async def main() -> Episode:
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await play(context, TASK, step=step, attempt=attempt)

    return asyncio.run(main())


def turns_of(episode: Episode, name: str) -> list[Turn]:
    assert episode.error is None, episode.error
    return [turn for turn in episode.turns if turn.agent == name]


def shown(turn: Turn) -> str:
    """All that an agent was told before it spoke."""
    return "\n".join(message.content for message in turn.messages)


def play_test_tasks(config: dict, folder: Path) -> list[Episode]:
    """Evaluate the untrained team of a config on its test tasks, and return what was played."""
    trainer = trainer_of(config, folder / "run", Display())
    file = folder / "played.parquet"

    async def evaluate():
        await trainer._resume()
        await evaluate_run(trainer.run, trainer.run.test, file=file)

    asyncio.run(evaluate())
    return read_parquet(file)
