"""Demonstrates a coder and a tester: following the text or slipping, copying or inventing tests.

The coder's programs are of the grammar in which the problems are generated: one line for each
sentence of the text (`environments.code_generated`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolecall.core.types import Task
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene

CODER = {"follows": 40, "slips": 35, "talks": 25}
TESTER = {"examples": 40, "invents": 35, "talks": 25}
VALUE = re.compile(r"-?\d+$")


def drills(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Problems and the programs that solve them."""
    return [(f"{task.prompt}\n", _reference(task)) for task in tasks[:number]]


def coder_tester(scene: Scene) -> str:
    if scene.role == "tester":
        return _tests(scene, scene.habit(TESTER))
    return write_program(scene)


def write_program(scene: Scene) -> str:
    """An agent that follows the text, misreads one sentence of it, or writes no program."""
    habit = scene.habit(CODER)
    if habit == "talks":
        return "I would go through the list once."
    program = _reference(scene.task)
    if habit == "slips":
        program = scene.random.choice(scene.task.info["wrong"])
    return f"```python\n{program.rstrip()}\n```"


def _reference(task: Task) -> str:
    if "reference" not in task.info or "wrong" not in task.info:
        raise ValueError(f"task {task.id} has no program to demonstrate")
    program: str = task.info["reference"]
    return program


def _tests(scene: Scene, habit: str) -> str:
    if habit == "talks":
        return "It should be tested well."
    lines = [f"{call} == {expected}" for call, expected in scene.task.info["examples"]]
    if habit == "invents":
        lines = [VALUE.sub(lambda old: str(int(old[0]) + 1), line) for line in lines]
    return "\n".join(["<tests>", *lines, "</tests>"])
