"""A new workflow on one page: two solvers at once, and a judge where they differ."""

import asyncio

from rolecall import Task, Team, Turn, World, workflow


@workflow
async def second_opinion(team: Team, task: Task, world: World, ask_judge: bool = True) -> Turn:
    first, second = await asyncio.gather(team.left(task.prompt), team.right(task.prompt))
    if not ask_judge or first.text == second.text:
        return first
    verdict = await team.judge(task.prompt, first)
    return second if verdict.tag("verify") == "reject" else first
