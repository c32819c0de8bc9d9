"""Tries out and ends what a run needs beside its models: engines, tools, servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rolecall.core.errors import ConfigError, InfrastructureError
from rolecall.rollout.user_worlds import check_worlds
from rolecall.setup.open_environment import check_environment
from rolecall.tools.use import check_kits
from rolecall.training.run import Run


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Start all that the run needs beside its models, and end it afterwards.

    Raises ConfigError where an engine, a tool or what the environment asks cannot start, before
    anything is played or written.
    """
    try:
        asyncio.run(_check(run))
        yield
    finally:
        asyncio.run(run.close())


async def _check(run: Run) -> None:
    uses = {name: agent.tools for name, agent in run.context.agents.items() if agent.tools}
    environment = run.context.environment
    tasks = [tasks[0] for tasks in run.sampler.parts.values()]
    try:
        await run.engine.check()
    except (InfrastructureError, ValueError) as error:
        raise ConfigError(f"engine: {error}") from error
    await check_environment(environment)
    await check_worlds(environment, tasks)
    if run.context.player is not None:
        await run.context.player.start()
    await check_kits(uses, worlds=[partial(environment.open, task, seed=0) for task in tasks])
