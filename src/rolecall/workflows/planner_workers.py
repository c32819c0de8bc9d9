"""A workflow in which a planner hands subtasks to workers, who work at once and report.

A worker sees its subtask alone. Subtasks stand in `<subtask>` tags, or in the calls of MATPO
(2510.04678): <use_mcp_tool> with <arguments>{"subtask": ...}</arguments>.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

from pydantic import PositiveInt

from rolecall.agents.agent import Quote, Said
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow

TAG = re.compile(r"<(/?)subtask>", re.IGNORECASE)
CALL = ("<use_mcp_tool>", "<arguments>", "</arguments>", "</use_mcp_tool>")
UNREADABLE = "Your call could not be read: write it again, or answer without one."
OPENED = re.compile(r"(?i:<subtask>)|<use_mcp_tool>")


def readable(turn: Turn) -> str | None:
    """None of a message that begins a call and does not end it as a call that can be read."""
    return turn.visible if len(OPENED.findall(turn.visible)) == len(subtasks_of(turn)) else None


@workflow(parsers={"planner": readable})
async def planner_workers(
    team: Team, task: Task, world: World, max_calls: PositiveInt = 20, at_once: PositiveInt = 4
) -> Turn:
    """Several workers take turns.

    max_calls: most subtasks; a message with calls of which none can be read counts as one, and is
        asked for again.
    at_once: most subtasks of one message of the planner.
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
    found = list(_tagged(text))
    for place, arguments in _called(text):
        try:
            subtask = str(json.loads(arguments).get("subtask") or "")
        except (ValueError, RecursionError, AttributeError):
            continue
        found.append((place, subtask.strip()))
    return [subtask for _, subtask in sorted(found) if subtask]


def _tagged(text: str) -> Iterator[tuple[int, str]]:
    """Place and content of each `<subtask>` that is closed."""
    opened: re.Match[str] | None = None
    for tag in TAG.finditer(text):
        if opened is None and not tag[1]:
            opened = tag
        elif opened is not None and tag[1]:
            yield opened.start(), text[opened.end() : tag.start()].strip()
            opened = None


def _called(text: str) -> Iterator[tuple[int, str]]:
    """Place and arguments of each whole call. One that lacks a part has none whole behind it."""
    at = 0
    while True:
        places = []
        for mark in CALL:
            place = text.find(mark, at)
            if place < 0:
                return
            places.append(place)
            at = place + len(mark)
        yield places[0], text[places[1] + len(CALL[1]) : places[2]]
