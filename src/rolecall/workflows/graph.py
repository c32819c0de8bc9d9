"""Who sees whose words, as a table in, a conversation out: for teams that need no code.

sees:
  planner: {}
  left: {now: [planner]}
  right: {now: [planner]}
  judge: {now: [left, right], before: [judge]}
"""

from __future__ import annotations

import asyncio
from graphlib import CycleError, TopologicalSorter

from pydantic import BaseModel, ConfigDict

from rolecall.core import Task, Turn
from rolecall.environments.base import World
from rolecall.team import Team
from rolecall.workflows.base import workflow


class Sees(BaseModel):
    """Whose words an agent reads: of this round, and of the round before."""

    model_config = ConfigDict(extra="forbid")

    now: list[str] = []
    before: list[str] = []


@workflow
async def graph(
    team: Team, task: Task, world: World, sees: dict[str, Sees], answer: str, rounds: int = 1
) -> Turn:
    """Agents whose predecessors have spoken speak at once; `answer` names who gives the answer.

    Raises ValueError for agents that the team lacks and for circles within a round.
    """
    _check(team, sees, answer)
    before: dict[str, Turn] = {}
    for _ in range(rounds):
        now: dict[str, Turn] = {}
        order = _order(sees)
        while order.is_active():
            ready = sorted(order.get_ready())
            told = [[*_said(sees[n].before, before), *_said(sees[n].now, now)] for n in ready]
            turns = await asyncio.gather(
                *(team[name](task.prompt, *seen) for name, seen in zip(ready, told, strict=True))
            )
            now |= zip(ready, turns, strict=True)
            order.done(*ready)
        before = now
    return before[answer]


def _said(names: list[str], turns: dict[str, Turn]) -> list[Turn]:
    return [turns[name] for name in names if name in turns]


def _order(sees: dict[str, Sees]) -> TopologicalSorter[str]:
    order = TopologicalSorter({name: seen.now for name, seen in sees.items()})
    order.prepare()
    return order


def _check(team: Team, sees: dict[str, Sees], answer: str) -> None:
    named = {answer} | {name for seen in sees.values() for name in (*seen.now, *seen.before)}
    if unknown := sorted((named - sees.keys()) | (sees.keys() - {*team.names})):
        raise ValueError(f"sees: there is no agent {unknown[0]!r} in the graph or in the team")
    try:
        _order(sees)
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ValueError(f"sees: these wait for one another within a round: {circle}") from error
