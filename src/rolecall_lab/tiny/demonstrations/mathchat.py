"""Demonstrates a reasoner, a computing executor and a verifier, careful or not.

The executor's programs are of a small grammar: a line `NAME = NUMBER_OR_NAME OPERATOR NUMBER` for
each step of the problem, and a last line that prints the last name.
"""

from __future__ import annotations

import re
from random import Random

from rolecall_lab.tiny.demonstrations.maths import guess
from rolecall_lab.tiny.demonstrations.scene import Scene, work_steps

SOLVER = {"works": 40, "slips": 30, "waffles": 30}
EXECUTOR = {"codes": 40, "slips": 20, "breaks": 15, "guesses": 25}
VERIFIER = {"reads": 40, "guesses": 35, "no_box": 25}
STEP = re.compile(r"(-?\d+)([-+*/])(\d+)=(-?\d+)")
PRINTED = re.compile(r"^(-?\d+)(?:$|<)", re.MULTILINE)  # a line, or the end of what is shown


def mathchat(scene: Scene) -> str:
    if scene.role == "solver":
        return _plan(scene, scene.habit(SOLVER))
    if scene.role == "verifier":
        return _decision(scene, scene.habit(VERIFIER))
    if "<output>" in scene.shown:
        printed = PRINTED.findall(scene.shown)
        return f"It prints {printed[-1]}." if printed else "It does not run."
    return _program(scene, scene.habit(EXECUTOR))


def _plan(scene: Scene, habit: str) -> str:
    steps = work_steps(scene.task).split("\n")
    if habit == "waffles":
        return "Let us think about it step by step."
    if habit == "slips":
        index = scene.random.randrange(len(steps))
        expression, _, value = steps[index].rpartition("=")
        steps[index] = f"{expression}={int(value) + scene.random.choice((-2, -1, 1, 2, 10))}"
    return "\n".join(steps)


def _program(scene: Scene, habit: str) -> str:
    if habit == "guesses":
        return f"I think it is {guess(int(scene.task.answer), scene.random)}."
    lines = program(work_steps(scene.task).split("\n"), random=scene.random, habit=habit)
    return "\n".join(["```python", *lines, "```"])


def program(steps: list[str], *, random: Random, habit: str) -> list[str]:
    """["3+4=7", "7*5=35"] -> ["a = 3 + 4", "b = a * 5", "print(b)"].

    One that `slips` has one number wrong; one that `breaks` prints a name that it does not have.
    """
    wrong = random.randrange(len(steps)) if habit == "slips" else -1
    lines: list[str] = []
    for index, step in enumerate(steps):
        match = STEP.fullmatch(step)
        if match is None:
            raise ValueError(f"{step!r} is no step such as 3+4=7")
        lhs, operator, rhs, _ = match.groups()
        if index == wrong:
            rhs = str(int(rhs) + random.choice((1, 2)))
        first = "abcdef"[index - 1] if index else lhs
        operator = "//" if operator == "/" else operator
        lines.append(f"{'abcdef'[index]} = {first} {operator} {rhs}")
    last = "x" if habit == "breaks" else "abcdef"[len(steps) - 1]
    return [*lines, f"print({last})"]


def _decision(scene: Scene, habit: str) -> str:
    """It reads what the executor's program printed, which stands last in what it is shown."""
    printed = PRINTED.findall(scene.shown)
    if habit == "guesses" or not printed:
        return f"\\boxed{{{guess(int(scene.task.answer), scene.random)}}}"
    if habit == "no_box":
        return f"It is {printed[-1]}."
    return f"\\boxed{{{printed[-1]}}}"
