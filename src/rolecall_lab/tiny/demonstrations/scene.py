"""Draws how the agent that is to speak will behave in a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rolecall.core.types import Task


@dataclass(frozen=True, slots=True)
class Scene:
    """The moment at which a role speaks."""

    role: str
    task: Task  # with what its generator knows: worked steps, what to look for
    said: list[tuple[str, str]]  # (role, text) of the episode so far
    shown: str  # the whole prompt, as text
    random: Random

    def habit(self, shares: dict[str, int]) -> str:
        """Draw a habit, each as often as its share says; the first is the one that pays."""
        return self.random.choices(list(shares), weights=list(shares.values()))[0]


Drill = tuple[str, str]  # what is shown, what is to be learned


def work_steps(task: Task) -> str:
    """Return the right steps, one a line.

    Raises ValueError for a task that was not generated.
    """
    if "steps" not in task.info:
        raise ValueError(f"task {task.id} has no worked steps to demonstrate")
    return "\n".join(task.info["steps"])


def drills(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Problems and their worked steps: the skill without the talk about it."""
    return [(f"{task.prompt}\n", f"{work_steps(task)}\n") for task in tasks[:number]]
