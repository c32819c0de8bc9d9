"""Writes what a good team says about a maths problem whose worked steps are known."""

from __future__ import annotations

import json
import re

from rolecall.core.interfaces.demonstrator import Line, Scene
from rolecall.core.types import Task
from rolecall.grading.math.answers import AnswerForm, extract

WORKFLOWS = ("majority_vote", "single", "solver_verifier")
SLIPS = 0.3  # share of first solutions that are wrong, so that others have something to reject
OPERATOR = re.compile(r"(?<=\d)([-+*=])(?=-?\d)")  # no sign of a number
CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's notes
ANSWERS = {
    "boxed": "\\boxed{{{}}}",
    "any": "\\boxed{{{}}}",
    "marked": "Answer: {}",
    "last": "So it is {}.",
}


def demonstrate(scene: Scene, form: AnswerForm) -> Line:
    """Return the next line of a solver, a debater or a verifier.

    Raises ValueError for another workflow, and for a task without worked steps.
    """
    if scene.workflow not in WORKFLOWS:
        raise ValueError(
            f"environment math writes no demonstrations for workflow {scene.workflow!r}; it writes "
            f"them for {', '.join(WORKFLOWS)}"
        )
    if scene.role == "verifier":
        return Line(_judge(scene, form))
    if "calculator" in scene.tools:
        return Line(_calculate(scene, form))
    is_answered = "verifier" in scene.roles or scene.role == "debater"
    if is_answered and not scene.own and scene.random.random() < SLIPS:
        return Line(_solve(scene.task, form, _miss(scene)), imitated=False)
    return Line(_solve(scene.task, form, str(scene.task.answer)))


def _solve(task: Task, form: AnswerForm, answer: str) -> str:
    """Return the work and an answer; a wrong one ends the work as well."""
    right = str(task.answer)
    work = _work(task)
    if answer != right and work.endswith(right):
        work = work.removesuffix(right) + answer
    return f"{work}. {ANSWERS[form].format(answer)}"


def _work(task: Task) -> str:
    """Return `3 + 4 = 7. 7 * 5 = 35`, or the solution of a data set without its final mark.

    Pretrained models know sums with spaces better: smollm2-135m completes 56 % of those of one
    operation, and 39 % without spaces.
    """
    if steps := task.info.get("steps"):
        return OPERATOR.sub(r" \1 ", ". ".join(steps))
    if isinstance(solution := task.info.get("solution"), str):
        text = CALCULATION.sub("", solution.rpartition("####")[0] or solution)
        return " ".join(text.split()).rstrip(".")
    raise ValueError(f"task {task.id} has no worked steps to demonstrate")


def _miss(scene: Scene) -> str:
    """Return a number near the right answer."""
    try:
        answer = int(str(scene.task.answer))
    except ValueError:
        return "0"
    return str(max(0, answer + scene.random.choice((1, 2, 3, 10))))


def _judge(scene: Scene, form: AnswerForm) -> str:
    solution = next(text for _, text in reversed(scene.transcript) if "<verify>" not in text)
    value = extract(solution, form=form)
    verdict = "approve" if value == str(scene.task.answer) else "reject"
    return f"{_work(scene.task)}. <verify>{verdict}</verify>"


def _calculate(scene: Scene, form: AnswerForm) -> str:
    """Call the calculator for each step, then answer with the last result."""
    steps = scene.task.info.get("steps")
    if not steps:
        raise ValueError(f"task {scene.task.id} has no steps to calculate")
    number = len(scene.own)
    if number == len(steps):
        return ANSWERS[form].format(scene.task.answer)
    call = {"name": "calculator", "arguments": {"expression": steps[number].partition("=")[0]}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"
