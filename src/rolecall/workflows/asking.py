"""Asks a member of the team again until its turn has the promised form, or tries run out."""

from __future__ import annotations

from rolecall.agents.agent import Said
from rolecall.agents.team import Member
from rolecall.core.types import Turn


async def ask_again(member: Member, *said: Said, tries: int = 2) -> Turn:
    """Ask until the turn is valid, at most `tries` times; the last turn, valid or not."""
    turn = await member(*said)
    for _ in range(tries - 1):
        if turn.valid:
            break
        turn = await member(*said)
    return turn
