"""Measures how fast we do GRPO steps: built, collected, credited and updated as in a run.

Left out are what a run writes to disk (journal, episodes, metrics, checkpoints) and evaluation.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rolecall.config.schema import Config
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task
from rolecall.rollout.group_player import collect
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.training import train_step
from rolecall.training.run import Run
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.grpo_step import LEARNING_RATE, STEPS, StepSize, prompts, reward
from rolecall_lab.bench.small_models import random_model


class Numbers:
    """Tasks are random numbers; what is said about them is worth its mean."""

    def __init__(self, length: int) -> None:
        self.length = length

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{i}", text) for i, text in enumerate(prompts(self.length))]

    def open(self, task: Task, *, seed: int) -> World:
        return NumbersWorld()


class NumbersWorld(World):
    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": reward(episode.turns[-1].ids[1].tolist())}


def set_up(size: StepSize, folder: Path) -> Measure:
    return measure_steps(make_config(size, random_model(folder, size.model)))


def measure_steps(config: Config) -> Measure:
    """Build the run of a config, and return what measures its steps."""
    run = build(validate(config))
    runner = asyncio.Runner()
    runner.get_loop().set_task_factory(task_factory)

    def measure(number: int) -> Measured:
        started = time.perf_counter()
        count = runner.run(count_tokens(run, number + 1))
        return Measured(1.0 / (time.perf_counter() - started), {"trained tokens": count})

    return measure


async def count_tokens(run: Run, number: int) -> int:
    """Do one step and return the tokens that were sampled.

    `asyncio.Runner` writes out what a task has returned, which takes long for episodes.
    """
    episodes = await step(run, number)
    return sum(len(turn.ids[1]) for episode in episodes for turn in episode.turns)


async def step(run: Run, number: int) -> list[Episode]:
    """Do one step as in trainer.py and return what was sampled."""
    tasks, size = run.sampler.sample(number), run.config.rollout.group_size
    rollout = await collect(run.context, tasks, step=number, group_size=size)
    await train_step.credit(run, rollout.episodes)
    await run.engine.sleep(weights=True)
    updates, _ = await train_step.update(run, rollout.episodes, step=number, apart=False)
    await train_step.publish(run, list(updates))
    assert not rollout.failures, rollout.first_error
    assert not any(update.skipped for update in updates.values())
    return rollout.episodes


def make_config(
    size: StepSize, base: Path, *, learner: dict[str, Any] | None = None, cache_gb: float = 2.0
) -> Config:
    """Return the config of one agent; `learner`: keys of its learner beside the dtype."""
    adapter = {"adapter": {"rank": size.rank, "alpha": 2 * size.rank, "targets": "all-linear"}}
    policy = {"base": str(base), "optimizer": {"lr": LEARNING_RATE}}
    return Config.model_validate(
        {
            "team": {"solver": {"policy": "policy", "sampling": {"max_tokens": size.completion}}},
            "policies": {"policy": policy | (adapter if size.rank else {})},
            "learner": {"dtype": size.dtype, **(learner or {})},
            "engine": {"cache_gb": cache_gb},
            "workflow": "single",
            "environment": {"name": f"{__name__}:Numbers", "length": size.prompt},
            "algorithm": "grpo",
            "rollout": {"groups": size.tasks, "group_size": size.samples},
            "trainer": {"steps": STEPS},
            "evaluation": {"tasks": 0},
        }
    )
