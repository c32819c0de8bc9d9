"""Lets agents act in a world: what they are told first, and what an action earns."""

from __future__ import annotations

from rolecall.agents.agent import Said
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Task, Turn


def open_conversation(team: Team, task: Task) -> list[Said]:
    """Return the task and the first observation, each where it has a text."""
    seen = team.observation
    messages: list[Said] = [task.prompt] if task.prompt or not seen.text else []
    return [*messages, seen] if seen.text else messages


async def act(world: World, agent: str, action: Turn) -> Observation:
    """Take an agent's action and return what came of it; the turn earns what the world pays."""
    seen = await world.step(agent, action.visible)
    if seen.reward:
        action.world_rewards["step"] = seen.reward
    return seen
