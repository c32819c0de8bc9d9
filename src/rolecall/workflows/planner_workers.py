"""A task in, a planner's answer out: it hands subtasks to workers, who work at once and report.

A worker sees its subtask alone. Subtasks stand in `<subtask>` tags, or in the calls of MATPO
(2510.04678): <use_mcp_tool> with <arguments>{"subtask": ...}</arguments>.
"""

from __future__ import annotations

import asyncio
import json
import re

from pydantic import PositiveInt

from rolecall.agents import Quote, Said
from rolecall.core import Task, Turn
from rolecall.environments.base import World
from rolecall.team import Team
from rolecall.workflows.base import workflow

TAGS = re.compile(r"<subtask>(.*?)</subtask>", re.DOTALL | re.IGNORECASE)
CALLS = re.compile(r"<use_mcp_tool>.*?<arguments>(.*?)</arguments>.*?</use_mcp_tool>", re.DOTALL)
UNREADABLE = "Your call could not be read: write it again, or answer without one."
OPENED = re.compile(r"(?i:<subtask>)|<use_mcp_tool>")


def readable(turn: Turn) -> str | None:
    """None of a message that begins a call and does not end it as a call that can be read."""
    return turn.visible if len(OPENED.findall(turn.visible)) == len(subtasks_of(turn)) else None


@workflow(parsers={"planner": readable}, tags=("<subtask>", "</subtask>", "[worker]"))
async def planner_workers(
    team: Team, task: Task, world: World, max_calls: PositiveInt = 20, at_once: PositiveInt = 4
) -> Turn:
    """At most `max_calls` subtasks, `at_once` of one message; several workers take turns.

    A message with calls of which none can be read counts as one, and is asked for again.
    """
    workers = team.role("worker")
    told: list[Said] = []
    plan = await team.planner(task.prompt)
    given = 0
    while given < max_calls:
        subtasks = subtasks_of(plan)[: min(at_once, max_calls - given)]
        if not subtasks and (plan.finish == "length" or readable(plan) is not None):
            break
        reports = await asyncio.gather(
            *(
                workers[(given + number) % len(workers)](Quote(plan, subtask))
                for number, subtask in enumerate(subtasks)
            )
        )
        given += max(1, len(subtasks))
        told += [plan, *reports] if reports else [plan, UNREADABLE]
        plan = await team.planner(task.prompt, *told)
    return plan


def subtasks_of(plan: Turn) -> list[str]:
    """What a message hands out, in its order; nothing of a message that was cut."""
    if plan.finish == "length":
        return []
    text = plan.visible
    found = [(match.start(), match[1].strip()) for match in TAGS.finditer(text)]
    for match in CALLS.finditer(text):
        try:
            subtask = json.loads(match[1]).get("subtask")
        except (json.JSONDecodeError, AttributeError):
            continue
        found.append((match.start(), str(subtask or "").strip()))
    return [subtask for _, subtask in sorted(found) if subtask]
