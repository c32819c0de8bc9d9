"""A workflow in which one agent acts in the world and sees what comes of it."""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.acting import act, open_conversation
from rolecall.workflows.base import workflow

SUMMARIZE = (
    "Sum up in a few sentences what you have done, what you have learned and what is still to do. "
    "From now on you will see this summary in place of the conversation."
)


@workflow
async def multi_turn(
    team: Team,
    task: Task,
    world: World,
    max_turns: PositiveInt = 8,
    summarize_every: PositiveInt | None = None,
) -> Turn:
    """Let one agent act until the world ends; each action earns what the world pays for it.

    max_turns: most actions.
    summarize_every: actions after which the agent sums up what happened; from then on it sees the
        task, its summary and the newest observation. By default it sees the whole conversation.
    """
    messages = open_conversation(team, task)
    opening = messages[:1]
    for number in range(max_turns):
        action = await team.actor(*messages)
        seen = await act(world, "actor", action)
        if seen.done or number == max_turns - 1:
            break
        messages += [action, seen]
        if summarize_every is not None and (number + 1) % summarize_every == 0:
            summary = await team.actor(*messages, SUMMARIZE)
            messages = [*opening, summary, seen]
    return action
