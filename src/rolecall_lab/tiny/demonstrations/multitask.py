"""Demonstrates one agent that writes programs, works maths out and prices orders with tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolecall.core.types import Task
from rolecall.environments.code.generated import ENDS, STEPS
from rolecall_lab.tiny.demonstrations import code, maths, tool_use
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene, drills

NUMBER = re.compile(r"\{\w+\}")  # in a line of the grammar
SHORTEST = 4  # letters of a piece that the tokenizer keeps whole
# What stands between the numbers of a line: `values = [v for v in values if v > ` and `]`.
PIECES = {piece for _, line in (*STEPS, *ENDS) for piece in NUMBER.split(line)}
TAGS = (*tool_use.ALONE, "return answer", *(p for p in sorted(PIECES) if len(p) >= SHORTEST))


def answer(scene: Scene) -> str:
    """Do what the task asks for. Raises ValueError for a task of no such kind."""
    if "reference" in scene.task.info:
        return code.write_program(scene)
    if "steps" in scene.task.info:
        return maths.solve(scene)
    return tool_use.answer_prices(scene)


def practise(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Drill what each kind of task needs, sums twice: they take longest to learn."""
    chosen = tasks[:number]
    sums = drills([task for task in chosen if "steps" in task.info], number)
    programs = [(f"{t.info['text']}\n", t.info["reference"]) for t in chosen if "text" in t.info]
    orders = [task for task in chosen if "expression" in task.info]
    calls = [tool_use.drill(task)[index % 3] for index, task in enumerate(orders)]
    return [*sums, *sums, *programs, *calls]
