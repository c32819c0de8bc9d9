"""A workflow written as a table of who reads whom, for teams that need no code.

sees:
  planner: {}
  left: {now: [planner]}
  right: {now: [planner]}
  judge: {now: [left, right], before: [judge]}
"""

from __future__ import annotations

import asyncio
from graphlib import CycleError, TopologicalSorter

from pydantic import BaseModel, ConfigDict, PositiveInt

from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


class Sees(BaseModel):
    """Whose words an agent reads: of this round, and of all rounds before."""

    model_config = ConfigDict(extra="forbid")

    now: list[str] = []
    before: list[str] = []


@workflow
async def graph(
    team: Team,
    task: Task,
    world: World,
    sees: dict[str, Sees],
    answer: str,
    rounds: PositiveInt = 1,
) -> Turn:
    """Agents whose predecessors have spoken speak at once.

    sees: the agents whose words each agent reads, in this round (`now`) and in all rounds before it
        (`before`).
    answer: the agent whose last turn is the answer.
    rounds: times that every agent speaks.

    Raises ValueError for agents of the team or the graph that the other lacks, for circles within
    a round, and for `before` where there is one round.
    """
    _check(team, sees, answer, rounds=rounds)
    earlier: list[dict[str, Turn]] = []
    for _ in range(rounds):
        now: dict[str, Turn] = {}
        order = _order(sees)
        while order.is_active():
            ready = sorted(order.get_ready())
            turns = await asyncio.gather(
                *(team[name](task.prompt, *_read(sees[name], earlier, now)) for name in ready)
            )
            now |= zip(ready, turns, strict=True)
            order.done(*ready)
        earlier.append(now)
    return earlier[-1][answer]


def _read(seen: Sees, earlier: list[dict[str, Turn]], now: dict[str, Turn]) -> list[Turn]:
    past = [spoken[name] for spoken in earlier for name in seen.before]
    return [*past, *(now[name] for name in seen.now)]


def _order(sees: dict[str, Sees]) -> TopologicalSorter[str]:
    order = TopologicalSorter({name: seen.now for name, seen in sees.items()})
    order.prepare()
    return order


def _check(team: Team, sees: dict[str, Sees], answer: str, *, rounds: int) -> None:
    named = {answer} | {name for seen in sees.values() for name in (*seen.now, *seen.before)}
    if unknown := sorted((named - sees.keys()) | (sees.keys() ^ {*team.names})):
        raise ValueError(f"sees: agent {unknown[0]!r} is not in the graph, or not in the team")
    if rounds == 1 and any(seen.before for seen in sees.values()):
        raise ValueError("sees: `before` has no effect in the first round, and rounds is 1")
    try:
        _order(sees)
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ValueError(f"sees: these wait for one another within a round: {circle}") from error
