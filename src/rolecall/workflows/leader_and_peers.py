"""A workflow in which a leader reads its peers' answers and gives the team's (2507.08960).

In training the leader answers the same words of its peers several times; each answer is scored, and
the best one goes on.
"""

from __future__ import annotations

import asyncio

from pydantic import PositiveInt

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow
from rolecall.workflows.candidates import play_best


@workflow(parsers={"leader": parse_boxed, "peer": parse_boxed}, candidates=True, forks=True)
async def leader_and_peers(
    team: Team, task: Task, world: World, candidates: PositiveInt = 8, rounds: PositiveInt = 1
) -> Turn:
    """Answers are judged by `World.step`, so the world must have one that judges them.

    candidates: the leader's answers to one prompt in training.
    rounds: number of rounds; from the second on peers revise after the leader's answer.
    """
    peers = team.role("peer")
    proposals: list[Turn] = []
    answer: Turn | None = None
    for _ in range(rounds):
        context = [] if answer is None else [*proposals, answer]
        proposals = await asyncio.gather(*(peer(task.prompt, *context) for peer in peers))
        answer = await play_best(team.leader, world, task.prompt, *proposals, number=candidates)
    assert answer is not None
    return answer
