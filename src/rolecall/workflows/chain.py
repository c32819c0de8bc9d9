"""A task in, a refined solution out: one writes, one criticises, one writes the final answer."""

from __future__ import annotations

from typing import Literal

from rolecall.core import Task, Turn
from rolecall.environments.base import World
from rolecall.parsers import boxed
from rolecall.team import Team
from rolecall.workflows.base import workflow


@workflow(parsers={"generator": boxed, "refiner": boxed})
async def chain(
    team: Team, task: Task, world: World, earns: Literal["outcome", "gain"] = "outcome"
) -> Turn:
    """`earns: gain` pays verifier and refiner what the refined solution is better than the first.

    All of them earn the outcome besides, unless `rewards` says otherwise.
    """
    first = await team.generator(task.prompt)
    critique = await team.verifier(task.prompt, first)
    refined = await team.refiner(task.prompt, first, critique)
    if earns == "gain":
        before = (await world.step("generator", first.visible)).team
        after = (await world.step("refiner", refined.visible)).team
        critique.rewards["gain"] = refined.rewards["gain"] = after - before
    return refined
