"""A workflow in which one agent writes code, one writes tests, and both see what fails.

Tests are lines of `call == value` between `<tests>` tags; the world runs them. A tester earns what
its tests are worth, which a reference program tells, not what they do to the coder.
"""

from __future__ import annotations

import asyncio

from pydantic import PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.parsers import parse_fence, parse_tag
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"coder": parse_fence, "tester": parse_tag("tests")})
async def coder_tester(team: Team, task: Task, world: World, max_turns: PositiveInt = 5) -> Turn:
    """Let a coder and a tester work until the code passes all tests of a turn.

    Neither sees the other's words.

    max_turns: most programs, each with its tests.
    """
    code_so_far: list[Said] = []
    tests_so_far: list[Said] = []
    for _ in range(max_turns):
        code, tests = await asyncio.gather(
            team.coder(task.prompt, *code_so_far), team.tester(task.prompt, *tests_so_far)
        )
        examples = await world.step("coder", _whole(code))
        seen = await world.step("tester", _whole(tests))
        tests.world_rewards["tests"] = seen.reward
        if seen.done:
            break
        code_so_far += [code, examples, seen]
        tests_so_far += [tests, examples, seen]
    return code


def _whole(turn: Turn) -> str:
    """Return the text of a turn, unless it was cut."""
    return "" if turn.finish == "length" else turn.visible
