"""Checks what user code returned before the rest relies on it.

A workflow, a world or a reward that returns something else than it should is told so by name, with
the file and the line where it stands.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any

from rolecall.config.user_code_location import locate_definition
from rolecall.core.interfaces.environment import ENDLESS, Observation
from rolecall.core.types import Task

LOOKED_AT = 1000  # tasks of a split that are checked before the run starts
MADE = 100  # the same of a split without end, whose tasks are made for that


async def await_user(given: object, *, what: str, call: Callable[..., Any]) -> object:
    """Await the result of a user's async function. Raises TypeError where it is none."""
    if not inspect.isawaitable(given):
        raise TypeError(
            f"{what} ({locate_definition(call)}) is not an async function: write `async def`"
        )
    return await given


def check_text(answer: object, *, workflow: Callable[..., Any]) -> str:
    """Return a workflow's answer as text; "" for None. Raises TypeError for a missing `await`."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(
            f"the workflow ({locate_definition(workflow)}) returned a call that was never awaited: "
            "write `return await ...`"
        )
    return "" if answer is None else str(answer)


def check_numbers(
    found: object, *, names: Collection[str], what: str, call: Callable[..., Any]
) -> dict[str, float]:
    """Return {agent or "team": finite number} of what `score` or a reward returned.

    Raises TypeError or ValueError naming the function, and what it returned instead.
    """
    where = f"{what} ({locate_definition(call)})"
    if not isinstance(found, Mapping):
        raise TypeError(
            f"{where} returned {_short(found)}; it must return numbers by agent or "
            '"team", such as {"team": 1.0}'
        )
    for name, value in found.items():
        if name not in names and name != "team":
            raise ValueError(
                f"{where} pays {name!r}, who is not in the team (it has: {', '.join(names)}; "
                '"team" is everybody)'
            )
        if not isinstance(value, Real):
            raise TypeError(f"{where} gives {name!r} {_short(value)}, which is not a number")
        if not math.isfinite(value):
            raise ValueError(f"{where} gives {name!r} {value}, which is not a finite number")
    return {name: float(value) for name, value in found.items()}


def check_tasks(tasks: object, *, split: str, call: Callable[..., Any]) -> None:
    """Check that tasks are a sequence of tasks with text prompts and unique ids.

    Raises ValueError otherwise.
    """
    if not isinstance(tasks, Sequence) or isinstance(tasks, str):
        raise ValueError(
            f"tasks({split!r}) returned {_short(tasks)}; it must return a list, or another "
            f"sequence, of Task ({locate_definition(call)})"
        )
    seen: set[str] = set()
    at = f" ({locate_definition(call)})"
    first = tasks[:LOOKED_AT] if len(tasks) < ENDLESS else list(islice(tasks, MADE))
    for number, task in enumerate(first):
        where = f"tasks({split!r})[{number}]"
        if not isinstance(task, Task):
            raise ValueError(f"{where} is {_short(task)}; it must be a Task{at}")
        for field in ("id", "prompt"):
            if not isinstance(value := getattr(task, field), str):
                raise ValueError(f"{where}.{field} is {_short(value)}; it must be a text{at}")
        if task.id in seen:
            raise ValueError(f"{where} has the id {task.id!r}, which an earlier task has{at}")
        seen.add(task.id)


def check_observation(found: object, *, call: Callable[..., Any]) -> Observation:
    """Return the observation of `reset`. Raises TypeError for what it must not return."""
    if not isinstance(found, Observation):
        raise TypeError(
            f"{locate_definition(call)} returned {_short(found)}; it must return an Observation"
        )
    return found


def _short(value: object) -> str:
    """Describe a value's type and the value, as in `a str ('yes')`."""
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine (it is not an async function, or an await is missing)"
    text = repr(value)
    return f"a {type(value).__name__} ({text if len(text) <= 40 else text[:37] + '...'})"
