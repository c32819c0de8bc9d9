"""Tries several answers of one agent in forks of the world, and takes the best one.

The sampling of AT-GRPO (2510.11062): all candidates answer one prompt, and each acts in a fork of
the world. The world goes on from the fork of the best, or stays where the answer is a proposal.
"""

from __future__ import annotations

from rolecall.agents.agent import Said
from rolecall.agents.team import Member
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Turn

Tried = tuple[Turn, World, Observation]  # a candidate, the fork in which it acted, what came of it


async def play_best(
    member: Member, world: World, *said: Said, number: int, alpha: float = 1.0
) -> Turn:
    """Score r = alpha * the team's reward + the agent's own; the first of the best is played.

    A candidate whose step raises is marked and compared with nobody. Raises ValueError if all do.
    """
    best, fork, seen = await _try_all(member, world, said, number=number, alpha=alpha)
    await world.become(fork)
    member.team.saw(seen)
    return member.team.choose(best)


async def propose_best(
    member: Member, world: World, *said: Said, number: int, alpha: float = 1.0
) -> Turn:
    """Score each candidate as if it were played, as `play_best` does, and leave the world as it is.

    For a proposal, on which another agent decides.
    """
    best, _, _ = await _try_all(member, world, said, number=number, alpha=alpha)
    return member.team.choose(best)


async def _try_all(
    member: Member, world: World, said: tuple[Said, ...], *, number: int, alpha: float
) -> Tried:
    turns = await member.candidates(number)(*said)
    tried: list[Tried] = []
    for turn in turns:
        fork = await world.fork()
        try:
            seen = await fork.step(turn.agent, "" if turn.finish == "length" else turn.visible)
        except Exception as error:  # the boundary to the world: this candidate is no data
            turn.candidate_error = f"{type(error).__name__}: {error}"
            continue
        turn.world_rewards |= {"team": alpha * seen.team, "own": seen.reward}
        tried.append((turn, fork, seen))
    if not tried:
        raise ValueError(f"every candidate of {member.agent.name!r} failed in the world")
    return max(tried, key=lambda entry: entry[0].score)
