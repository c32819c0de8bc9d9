"""A workflow of a solver and a verifier: the protocol of Dr. MAS (2602.08847) for maths.

The solver sees the task and all that both have said so far; so does the verifier, and the newest
solution. The last round has no verifier: nobody would act on its word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import PositiveInt

from rolecall.agents.parsers import parse_boxed, parse_choice
from rolecall.agents.team import Member, Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow
from rolecall.workflows.candidates import play_best

Ask = Callable[..., Awaitable[Turn]]
OnUnparsable = Literal["reject", "approve", "retry"]


@workflow(
    parsers={"solver": parse_boxed, "verifier": parse_choice("verify", "approve", "reject")},
    candidates=True,
    forks=True,
)
async def solver_verifier(
    team: Team,
    task: Task,
    world: World,
    rounds: PositiveInt = 2,
    on_unparsable: OnUnparsable = "reject",
    candidates: PositiveInt = 1,
) -> Turn:
    """Several agents may play the verifier, and all must approve.

    rounds: most solutions.
    on_unparsable: verdict to use if there is no readable tag; `retry` asks once more and then
        rejects.
    candidates: answers drawn at each turn, of which the best is played (for AT-GRPO).
    """

    async def ask(member: Member, *said: str | Turn) -> Turn:
        if candidates == 1:
            return await member(*said)
        return await play_best(member, world, *said, number=candidates)

    messages: list[Turn] = [await ask(team.solver, task.prompt)]
    for _ in range(rounds - 1):
        verdicts = await asyncio.gather(
            *(_verdict(ask, v, task, messages, on_unparsable) for v in team.role("verifier"))
        )
        solution = messages[-1]
        messages += [turn for turn, _ in verdicts]
        if all(approved for _, approved in verdicts):
            return solution
        messages.append(await ask(team.solver, task.prompt, *messages))
    return messages[-1]


async def _verdict(
    ask: Ask, verifier: Member, task: Task, said: list[Turn], on_unparsable: OnUnparsable
) -> tuple[Turn, bool]:
    turn = await ask(verifier, task.prompt, *said)
    if not turn.valid and on_unparsable == "retry":
        turn = await ask(verifier, task.prompt, *said)
    if not turn.valid:
        return turn, on_unparsable == "approve"
    return turn, turn.tag("verify") == "approve"
