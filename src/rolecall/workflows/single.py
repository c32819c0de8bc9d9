"""A task in, one agent's solution out."""

from __future__ import annotations

from rolecall.core import Task, Turn
from rolecall.environments.base import World
from rolecall.parsers import boxed
from rolecall.team import Team
from rolecall.workflows.base import workflow


@workflow(parsers={"solver": boxed})
async def single(team: Team, task: Task, world: World) -> Turn:
    """One call."""
    return await team.solver(task.prompt)
