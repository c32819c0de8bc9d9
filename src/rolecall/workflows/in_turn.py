"""A workflow in which agents choose one after another, and then the world takes a joint step."""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.acting import act
from rolecall.workflows.base import workflow


@workflow
async def in_turn(team: Team, task: Task, world: World, max_steps: PositiveInt = 100) -> Turn:
    """Let each agent of the role `player` act, in the order of the team, until the world ends.

    An agent sees the state that the world is in now, and what others chose in this step.

    max_steps: most joint steps.
    """
    seen = team.observation
    for _ in range(max_steps):
        chosen: list[Turn] = []
        for player in team.role("player"):
            action = await player(task.prompt, seen, *chosen)
            after = await act(world, action.agent, action)
            chosen.append(action)
        seen = after
        if seen.done:
            break
    return action
