"""A coder and a tester: follow the text or slip, copy examples or invent them.

The coder's programs are of the grammar in which the problems are generated: one line for each
sentence of the text (`environments.code_generated`).
"""

from __future__ import annotations

import re

from rolecall.habits.base import Scene

CODER = {"follows": 40, "slips": 35, "talks": 25}
TESTER = {"examples": 40, "invents": 35, "talks": 25}
VALUE = re.compile(r"-?\d+$")


def coder_tester(scene: Scene) -> str:
    info = scene.task.info
    if "reference" not in info or "wrong" not in info:
        raise ValueError(f"task {scene.task.id} has no program to demonstrate")
    habit = scene.habit(CODER if scene.role == "coder" else TESTER)
    if scene.role == "tester":
        return _tests(scene, habit)
    if habit == "talks":
        return "I would go through the list once."
    program = info["reference"] if habit == "follows" else scene.random.choice(info["wrong"])
    return f"```python\n{program.rstrip()}\n```"


def _tests(scene: Scene, habit: str) -> str:
    if habit == "talks":
        return "It should be tested well."
    lines = [f"{given} == {expected}" for given, expected in scene.task.info["examples"]]
    if habit == "invents":
        lines = [VALUE.sub(lambda old: str(int(old[0]) + 1), line) for line in lines]
    return "\n".join(["<tests>", *lines, "</tests>"])
