"""A workflow in which several agents propose at once and an aggregator sums up.

Mixture of agents (2406.04692): with `layers`, proposers read the proposals of the layer before.
"""

from __future__ import annotations

import asyncio

from pydantic import PositiveInt

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Member, Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"proposer": parse_boxed, "aggregator": parse_boxed})
async def mixture(team: Team, task: Task, world: World, layers: PositiveInt = 1) -> Turn:
    """Let proposers answer in layers and an aggregator combine their last answers.

    The reward `proposals` pays each proposer for its own answer.

    layers: proposals of each proposer; from the second on it reads those of the layer before.
    """
    proposers = team.role("proposer")
    if layers > 1 and len(proposers) == 1:
        raise ValueError("more layers have no effect: one proposer has nobody to read")

    async def propose(member: Member, layer: int, before: list[Turn]) -> Turn:
        others = [turn for turn in before if turn.agent != member.agent.name]
        own = [turn for turn in before if turn.agent == member.agent.name]
        team.random(layer, member.agent.name).shuffle(others)  # no position is known by it
        return await member(task.prompt, *own, *others)

    proposals: list[Turn] = []
    for layer in range(layers):
        proposals = await asyncio.gather(*(propose(m, layer, proposals) for m in proposers))
    team.random("aggregator").shuffle(proposals)
    return await team.aggregator(task.prompt, *proposals)
