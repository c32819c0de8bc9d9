"""Measures the seconds in which we reach a score: steps as in a run, without files on disk."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rolecall.config.schema import Config
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.math_to_score import MOST_STEPS, Goal, Progress, make_config, warm_base
from rolecall_lab.bench.rolecall_step import step


def set_up(goal: Goal, folder: Path) -> Measure:
    base = warm_base(goal, folder)

    def measure(run: int) -> Measured:
        trainer = {"steps": MOST_STEPS, "seed": run}
        config = make_config(goal, str(base), algorithm="grpo", trainer=trainer)
        built = build(validate(Config.model_validate(config)))
        progress = Progress(goal)
        with asyncio.Runner() as runner:
            runner.get_loop().set_task_factory(task_factory)
            started = time.perf_counter()
            rewards: list[float] = []
            while not rewards or not progress.is_reached(rewards):
                episodes = runner.run(step(built, progress.steps + 1))
                rewards = [episode.scores["team"] for episode in episodes]
            took = time.perf_counter() - started
        return Measured(1.0 / took, {"attempts": len(rewards)})

    return measure
