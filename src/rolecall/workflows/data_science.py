"""A workflow of MAPPA: three roles make features, a model and predictions from a table.

Files pass from role to role in the world; a role sees the task, the list of files as it is, and
the final words of those before it. Its turns are its calls of the world's tool `python`: MAPPA's
four are `tools: {use: [world], format: code, max_calls: 3}`.
"""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow
async def data_science(team: Team, task: Task, world: World, tries: PositiveInt = 1) -> Turn:
    """Let engineer, modeler and analyst work in turn; one whose files are missing tries again.

    tries: most times that a role is asked.
    """
    seen = team.observation
    finals: list[Turn] = []
    for member in (team.engineer, team.modeler, team.analyst):
        messages: list[Said] = [task.prompt, *finals, seen]
        for _ in range(tries):
            turn = await member(*messages)
            seen = await world.step(member.agent.role, turn.visible)
            if seen.done:
                break
            messages += [turn, seen]
        finals.append(turn)
    return finals[-1]
