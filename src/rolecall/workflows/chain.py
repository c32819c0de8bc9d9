"""A task in, a refined solution out: one writes, one criticises, one writes the final answer."""

from __future__ import annotations

from rolecall.core import Task, Turn
from rolecall.environments.base import World
from rolecall.parsers import boxed
from rolecall.team import Team
from rolecall.workflows.base import workflow


@workflow(parsers={"generator": boxed, "refiner": boxed})
async def chain(team: Team, task: Task, world: World) -> Turn:
    """The reward `refined` pays verifier and refiner what the last is better than the first."""
    first = await team.generator(task.prompt)
    critique = await team.verifier(task.prompt, first)
    return await team.refiner(task.prompt, first, critique)
