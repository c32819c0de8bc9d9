"""A new workflow on one page: two solvers at once, and a judge who reads both."""

import asyncio

from rolecall import Task, Team, Turn, World, workflow


@workflow
async def second_opinion(team: Team, task: Task, world: World, ask_judge: bool = True) -> Turn:
    first, second = await asyncio.gather(team.left(task.prompt), team.right(task.prompt))
    if not ask_judge or first.text == second.text:
        return first
    return await team.judge(task.prompt, first, second)
