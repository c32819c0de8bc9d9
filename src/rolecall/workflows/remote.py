"""A workflow in which the server of an environment says who acts, and what it is shown."""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.agent import spoken
from rolecall.agents.team import Member, Team
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Task, Turn
from rolecall.environments.remote.world import RemoteWorld, last_text
from rolecall.workflows.acting import act
from rolecall.workflows.base import workflow


@workflow
async def remote(team: Team, task: Task, world: World, max_turns: PositiveInt = 64) -> Turn:
    """Let the agents answer the messages of the environment's server until the episode ends.

    An agent of a server is the agent of that name. A team of one agent plays them all.

    max_turns: most turns of all agents.
    """
    if not isinstance(world, RemoteWorld):
        raise ValueError(
            f"workflow remote needs environment remote or openenv, not {type(world).__name__}"
        )
    turns: dict[tuple[str, str], Turn] = {}  # by agent and what the server was sent
    for number in range(max_turns):
        scene = world.scene
        member = choose_member(team, scene.agent)
        name = member.agent.name
        earlier, messages = [], []
        for message in scene.messages:
            own = turns.get((name, message.content)) if message.role == "assistant" else None
            messages.append(message if own is None else spoken(own))
            earlier += [] if own is None else [own]
        team.saw(Observation(last_text(scene)))
        turn = await member.reply(
            messages,
            earlier=earlier,
            tools=[],
            sampling=member.agent.sampling,
            draw=str(number),
        )
        turns[name, turn.visible] = turn
        seen = await act(world, name, turn)
        if seen.done:
            break
    return turn


def choose_member(team: Team, agent: str) -> Member:
    """Return the agent of a name; of a team of one, that one. Raises ValueError."""
    if len(team.names) == 1:
        return team[team.names[0]]
    names = ", ".join(team.names)
    if not agent:
        raise ValueError(
            f"the server does not say which agent acts, and the team has {names}; keep one agent"
        )
    if agent not in team.names:
        raise ValueError(
            f"the server asks agent {agent!r}, and the team has {names}; name an agent {agent!r}"
        )
    return team[agent]
