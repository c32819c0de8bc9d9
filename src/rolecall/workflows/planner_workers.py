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
    return turn.visible if len(OPENED.findall(turn.visible)) == len(parse_subtasks(turn)) else None


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
    history: list[Said] = []
    plan = await team.planner(task.prompt)
    num_calls = 0
    while num_calls < max_calls:
        subtasks = parse_subtasks(plan)[: min(at_once, max_calls - num_calls)]
        if not subtasks and (plan.finish == "length" or readable(plan) is not None):
            break
        reports = await asyncio.gather(
            *(
                workers[(num_calls + number) % len(workers)](Quote(plan, subtask))
                for number, subtask in enumerate(subtasks)
            )
        )
        num_calls += max(1, len(subtasks))
        history += [plan, *reports] if reports else [plan, UNREADABLE]
        plan = await team.planner(task.prompt, *history)
    return plan


def parse_subtasks(plan: Turn) -> list[str]:
    """Return the subtasks of a message, in its order; nothing of a message that was cut."""
    if plan.finish == "length":
        return []
    text = plan.visible
    subtasks = list(_tagged(text))
    for position, arguments in _called(text):
        try:
            subtask = str(json.loads(arguments).get("subtask") or "")
        except (ValueError, RecursionError, AttributeError):
            continue
        subtasks.append((position, subtask.strip()))
    return [subtask for _, subtask in sorted(subtasks) if subtask]


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
            position = text.find(mark, at)
            if position < 0:
                return
            places.append(position)
            at = position + len(mark)
        yield places[0], text[places[1] + len(CALL[1]) : places[2]]
