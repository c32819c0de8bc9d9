"""Plays a step's tasks before any training, and says whether they have a signal."""

from __future__ import annotations

import asyncio

from rolecall.monitor.diagnosis import Diagnosis, diagnose, group_by_task
from rolecall.rollout.episodes import Rollout
from rolecall.rollout.group_player import collect
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import Plan
from rolecall.training import train_step
from rolecall.training.run import Run


def try_tasks(plan: Plan) -> Diagnosis:
    """Play every attempt at the tasks of the first step with the team as it is.

    Raises ConfigError as building a run does, and RuntimeError where every episode failed.
    """
    run = build(plan)
    with running(run):
        rollout = asyncio.run(_play(run))
        if not rollout.episodes:
            raise RuntimeError(f"every episode failed; the first: {rollout.first_error}")
        groups = group_by_task(rollout.episodes)
        return diagnose(groups, run.context.agents, run.context.environment)


async def _play(run: Run) -> Rollout:
    asyncio.get_running_loop().set_task_factory(task_factory)
    await train_step.publish(run, list(run.learners))
    size = run.config.rollout.group_size
    return await collect(run.context, run.sampler.sample(1), step="try", group_size=size)
