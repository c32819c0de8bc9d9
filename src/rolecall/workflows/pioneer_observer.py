"""A workflow in which an observer reads what a pioneer answered (CORY, 2410.06101).

The two agents swap roles every `swap_every` steps; weights, optimizer and reference stay with the
policies. In an evaluation the agent that stands first is the pioneer.
"""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"player": parse_boxed})
async def pioneer_observer(
    team: Team, task: Task, world: World, swap_every: PositiveInt = 5
) -> Turn:
    """Let two agents of the role `player` answer. Each turn earns the sum of both scores.

    It is paid in place of the team's score.

    swap_every: training steps after which the two swap roles; an evaluation never swaps them.
    """
    players = team.role("player")
    if len(players) != 2:
        raise ValueError(f"two agents of the role player are needed (there are {len(players)})")
    swapped = team.step is not None and (team.step // swap_every) % 2 == 1
    pioneer, observer = reversed(players) if swapped else players
    first = await pioneer(task.prompt)
    second = await observer(task.prompt, first)
    both = [await world.worth(turn.agent, turn.visible) for turn in (first, second)]
    for turn in (first, second):
        turn.pay("pair", sum(both))
    return second
