"""A workflow whose answers branch as a tree: every draft is criticised several times, and every
critique leads to several refinements (MALT, 2412.01928).

A refinement is worth 1 if it is right, and any other turn the mean of what came of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from statistics import fmean

from pydantic import PositiveInt

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow
from rolecall.workflows.majority_vote import elect


@dataclass(frozen=True, slots=True)
class Node:
    """A turn and those that it led to."""

    turn: Turn
    below: list[Node]


@workflow(
    parsers={"generator": parse_boxed, "refiner": parse_boxed},
    candidates=True,
    plays_candidates=True,
)
async def malt(
    team: Team,
    task: Task,
    world: World,
    candidates: PositiveInt = 3,
    theta: float | None = None,
    votes: PositiveInt = 3,
) -> str:
    """Reward each turn with its value instead of the outcome. With `theta: 0.5` sft imitates the
    turns that are worth more, and dpo pairs them with siblings, which have the same prompt, that
    are not. The refinements vote on the answer.

    candidates: drafts, critiques of each and refinements of each of those; an evaluation has one.
    theta: pay 1 to a turn that is worth more and 0 to any other, not what it is worth.
    votes: chains of three of which an evaluation takes the answer.
    """

    async def refine(draft: Turn, critique: Turn) -> Node:
        turns = await team.refiner.candidates(candidates)(task.prompt, draft, critique)
        return Node(critique, [Node(turn, []) for turn in turns])

    async def criticise(draft: Turn) -> Node:
        critiques = await team.verifier.candidates(candidates)(task.prompt, draft)
        return Node(draft, await asyncio.gather(*(refine(draft, one) for one in critiques)))

    drafts = await team.generator.candidates(candidates)(task.prompt)
    if len(drafts) < candidates:  # an evaluation
        draw = team.generator.candidates(1)
        drafts += [turn for _ in range(votes - 1) for turn in await draw(task.prompt)]
    tree = await asyncio.gather(*map(criticise, drafts))
    leaves: list[Turn] = []
    for node in tree:
        await _pay(node, world, theta, leaves)
    return await elect(world, leaves)


async def _pay(node: Node, world: World, theta: float | None, leaves: list[Turn]) -> float:
    """Pay a node's turn and return its value. All of its turns are played: others go on from
    their words.
    """
    turn = node.turn
    turn.chosen = True
    if node.below:
        value = fmean([await _pay(child, world, theta, leaves) for child in node.below])
    else:
        leaves.append(turn)
        text = "" if turn.finish == "length" else turn.visible
        value = float((await world.step(turn.agent, text)).team)
    turn.info["value"] = value
    turn.pay("value", value if theta is None else float(value > theta))
    return value
