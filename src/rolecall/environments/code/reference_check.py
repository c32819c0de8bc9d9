"""Runs the reference solutions of a file against their own tests before a run.

A reference that fails shows that no program can earn the reward: a package that is missing here,
a time limit that is too short, or a wrong row.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rolecall.core.async_types import Work
from rolecall.core.types import Task
from rolecall.sandbox.base import SandboxError

notices = logging.getLogger("rolecall.notices")

Passes = Callable[[Task], Awaitable[list[bool]]]  # each test of a task, for its reference
AT_ONCE = 16  # references between two looks at the clock


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of running reference solutions."""

    num_run: int
    failed: list[str]  # ids of tasks


def report_references(check: Callable[[], Work[Outcome]], path: Path) -> None:
    """Run the check, and report in one line how many references fail."""
    with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
        try:
            outcome = thread.submit(lambda: asyncio.run(check())).result()
        except SandboxError:  # programs cannot be run here
            return
    if outcome.failed:
        notices.warning(
            "%s: %d of the %d reference solutions that were run fail their own tests, so no "
            "program may pass these here; the first is %s",
            path,
            len(outcome.failed),
            outcome.num_run,
            outcome.failed[0],
        )


async def run_references(tasks: Sequence[Task], passes: Passes, *, limit_s: float) -> Outcome:
    """Run the references in their order until the time is over."""

    async def solves(task: Task) -> bool:
        try:
            return all(await passes(task))
        except ValueError:  # a test that no program can pass or fail
            return False

    until, failed, num_run = time.monotonic() + limit_s, [], 0
    while num_run < len(tasks) and time.monotonic() < until:
        chosen = tasks[num_run : num_run + AT_ONCE]
        solved = await asyncio.gather(*map(solves, chosen))
        failed += [task.id for task, is_solved in zip(chosen, solved, strict=True) if not is_solved]
        num_run += len(chosen)
    return Outcome(num_run, failed)
