"""A workflow of debaters who speak at once, read the others, and vote (2305.14325).

Votes are grouped by equivalence, so 1/2 and 0.5 are one answer; who gives none abstains.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import PositiveInt

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Member, Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"debater": parse_boxed})
async def majority_vote(
    team: Team,
    task: Task,
    world: World,
    rounds: PositiveInt = 2,
    max_others: PositiveInt = 5,
    contain_self: bool = True,
    earns: Literal["own", "outcome"] = "own",
    asks: tuple[str, ...] = (),
) -> str:
    """Let debaters answer and vote; on a tie the debater who stands first in the team wins.

    rounds: answers of each debater; 1 is a vote without a debate.
    max_others: most of the others' latest answers that a debater reads, in an order of its own.
    contain_self: whether a debater reads its own latest answer too.
    earns: `own` pays every turn for its own answer, in place of the vote's outcome.
    asks: what debaters are told last in each round; rounds after these repeat the last one.
    """
    debaters = team.role("debater")
    if len(debaters) < 2:
        raise ValueError("a vote needs two debaters at least")
    latest: list[Turn] = []
    for number in range(rounds):

        async def speak(member: Member, seen: list[Turn], number: int = number) -> Turn:
            own = [turn for turn in seen if turn.agent == member.agent.name]
            others = [turn for turn in seen if turn.agent != member.agent.name]
            team.random("others", number, member.agent.name).shuffle(others)
            context = (own if contain_self else []) + others[:max_others]
            last = asks[min(number, len(asks) - 1)] if asks else ""
            return await member(task.prompt, *context, *([last] if last else []))

        latest = await asyncio.gather(*(speak(member, latest) for member in debaters))
        if earns == "own":
            for turn in latest:
                turn.pay("own", await world.worth(turn.agent, turn.visible))
    return await elect(world, latest)


async def elect(world: World, turns: list[Turn]) -> str:
    """Return the text of the first turn whose answer has the most votes; "" if all abstain."""
    votes: list[tuple[str, list[Turn]]] = []
    for turn in turns:
        value = None if turn.finish == "length" else world.find_answer(turn.text)
        if value is None:
            turn.info["abstained"] = True
            continue
        for answer, those in votes:
            if await world.equal(answer, value):
                those.append(turn)
                break
        else:
            votes.append((value, [turn]))
    if not votes:
        return ""
    _, most = max(votes, key=lambda vote: len(vote[1]))  # the first of the largest
    return most[0].visible
