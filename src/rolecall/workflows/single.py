"""A workflow in which one agent answers the task."""

from __future__ import annotations

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"solver": parse_boxed})
async def single(team: Team, task: Task, world: World) -> Turn:
    """Ask one agent once."""
    return await team.solver(task.prompt)
