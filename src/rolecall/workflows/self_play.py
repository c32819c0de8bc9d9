"""A workflow in which agents play a game in turn, and each knows its own view alone."""

from __future__ import annotations

from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.turn_based import TurnBased
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow
async def self_play(team: Team, task: Task, world: World, swap_seats: bool = False) -> Turn:
    """Let one agent of the role `player` play each seat of the game, in the order of the team.

    swap_seats: whether the seats are drawn for each episode; then a seat is no agent's own.
    """
    if not isinstance(world, TurnBased):
        raise ValueError(f"self_play needs a game to play, not {type(world).__name__}")
    players = team.role("player")
    if swap_seats:
        team.random("seats").shuffle(players)
    await world.seat_agents([player.agent.name for player in players])
    members = {player.agent.name: player for player in players}
    while (name := world.player()) is not None:
        seat = str(world.seat(name))
        move = await members[name](task.prompt, world.view(name))
        move.seat = seat
        seen = await world.step(name, move.visible)
        move.info |= seen.info  # what it saw and did, for measures
        if seen.text:  # a warning: one more try
            members[name].reject(move)
            move = await members[name](task.prompt, world.view(name), move, seen)
            move.seat = seat
            move.info |= (await world.step(name, move.visible)).info
            if "action" not in move.info:  # it forfeits
                members[name].reject(move)
    return move
