"""Demonstrates two debaters, honest or not, and a judge who checks the sums or does not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rolecall.core.types import Task
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene, work_steps

DEBATER = {"shows": 35, "twists": 25, "asserts": 40}
JUDGE = {"checks": 35, "first": 25, "last": 25, "tie": 15}
FOR = "You argue for it."  # what the workflow tells that side


def drills(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Return the judge's work in short, and comparisons of numbers alone."""
    random = Random(0)
    examples: list[Drill] = []
    for task in tasks[: number // 2]:
        claimed = random.randint(0, 70)
        value = max(0, claimed + random.choice((0, 0, 0, 0, 0, 0, -10, -2, -1, 1, 2, 10)))
        shown, colon, learned = _compared(str(claimed), str(value)).partition(":")
        sides = random.sample(("for", "against"), 2)
        heard = " ".join(f"{name} ({side})" for name, side in zip("AB", sides, strict=True))
        examples.append((shown + colon, learned))
        examples.append((f"{task.prompt}\n{heard}\n", _judged(task, heard)))
    return examples


def debate(scene: Scene) -> str:
    if scene.role == "judge":
        return _verdict(scene, scene.habit(JUDGE))
    return _argument(scene, scene.habit(DEBATER))


def _argument(scene: Scene, habit: str) -> str:
    """Return a debater's argument.

    What is shown is the truth, whomever it serves; what is twisted ends as the side needs it.
    """
    supports = FOR in scene.shown
    if habit == "asserts":
        return "That is plainly right." if supports else "That is plainly wrong."
    steps = work_steps(scene.task).split("\n")
    claimed = _claimed(scene.task)
    if habit == "twists" and supports != (scene.task.answer == "for"):
        expression, _, value = steps[-1].rpartition("=")
        wrong = str(int(value) + scene.random.choice((1, 2, 10)))
        steps[-1] = f"{expression}={claimed if supports else wrong}"
    return "\n".join(steps)


def _claimed(task: Task) -> str:
    """Return the number that the proposition says it comes to."""
    return task.prompt.rstrip(".").rpartition(" ")[2]


def _verdict(scene: Scene, habit: str) -> str:
    if habit in ("first", "last"):
        return f"<winner>{'a' if habit == 'first' else 'b'}</winner>"
    if habit == "tie":
        return "<winner>tie</winner>"
    return _judged(scene.task, scene.shown)


def _judged(task: Task, heard: str) -> str:
    """The calculation, its comparison with what was said, and who stands for the right side."""
    compared = _compared(_claimed(task), task.info["value"])
    winner = "a" if f"A ({task.answer})" in heard else "b"
    return f"{work_steps(task)}\n{compared}\n<winner>{winner}</winner>"


def _compared(said: str, value: str) -> str:
    return f"said {said}, is {value}: {'for' if said == value else 'against'}."
