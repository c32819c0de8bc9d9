"""Tries several answers of one agent in forks of the world, and plays the best one.

The sampling of AT-GRPO (2510.11062): all candidates answer one prompt, each acts in a fork of the
world, and the world goes on from the fork of the best.
"""

from __future__ import annotations

from rolecall.agents.agent import Said
from rolecall.agents.team import Member
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Turn


async def play_best(
    member: Member, world: World, *said: Said, number: int, alpha: float = 1.0
) -> Turn:
    """Score r = alpha * the team's reward + the agent's own; the first of the best is played.

    A candidate whose step raises is marked and compared with nobody. Raises ValueError if all do.
    """
    turns = await member.candidates(number)(*said)
    played = []
    for turn in turns:
        fork = await world.fork()
        try:
            seen = await fork.step(turn.agent, "" if turn.finish == "length" else turn.visible)
        except Exception as error:  # the boundary to the world: this candidate is no data
            turn.candidate_error = f"{type(error).__name__}: {error}"
            continue
        turn.world_rewards |= {"team": alpha * seen.team, "own": seen.reward}
        played.append((turn.score, turn, fork, seen))
    if not played:
        raise ValueError(f"every candidate of {member.agent.name!r} failed in the world")
    _, best, fork, seen = max(played, key=lambda entry: entry[0])
    await world.become(fork)
    member.team.saw(seen)
    return member.team.choose(best)
