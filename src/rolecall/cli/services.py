"""Tries out what a run needs beside its models: tools, and servers that the environment asks."""

from __future__ import annotations

import asyncio

from rolecall.config.errors import ConfigError
from rolecall.errors import InfrastructureError
from rolecall.rollout.episodes import RolloutContext
from rolecall.tools.use import check_kits
from rolecall.training.run import Run


def check_services(run: Run) -> None:
    """Raises ConfigError where a tool or what the environment asks cannot start, before anything
    is played or written.
    """
    uses = {name: agent.tools for name, agent in run.context.agents.items() if agent.tools}
    environment, part = run.context.environment, next(iter(run.sampler.parts.values()))

    async def check() -> None:
        if hasattr(environment, "check"):
            try:
                await environment.check()
            except (InfrastructureError, OSError) as error:
                raise ConfigError(f"environment: {error}") from error
        await check_kits(uses, world=lambda: environment.open(part[0], seed=0))

    try:
        asyncio.run(check())
    except BaseException:
        asyncio.run(run.close())
        raise


def close(context: RolloutContext) -> None:
    """End what an environment has started, where there is no run."""
    close = getattr(context.environment, "close", None)
    if close is not None:
        asyncio.run(close())
