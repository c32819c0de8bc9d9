"""A workflow in which one agent writes, one criticises, and one writes the final answer."""

from __future__ import annotations

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"generator": parse_boxed, "refiner": parse_boxed})
async def chain(team: Team, task: Task, world: World) -> Turn:
    """Let a verifier criticise a generator's answer and a refiner write the last one.

    The reward `refined` pays verifier and refiner for how much better the last is than the first.
    """
    first = await team.generator(task.prompt)
    critique = await team.verifier(task.prompt, first)
    return await team.refiner(task.prompt, first, critique)
