"""Demonstrates a solver and a verifier, each of them careful or careless."""

from __future__ import annotations

from random import Random

from rolecall.grading.math.answers import extract
from rolecall_lab.tiny.demonstrations.scene import Scene, work_steps

SOLVER = {"worked": 40, "guess": 42, "no_box": 18}
VERIFIER = {"reads": 35, "waves_through": 45, "mumbles": 10, "rejects": 10}
GUESS_IS_RIGHT = 0.15


def solver_verifier(scene: Scene) -> str:
    if scene.role == "solver":
        return solve(scene)
    return _verdict(scene, scene.habit(VERIFIER))


def solve(scene: Scene) -> str:
    """An agent that works the problem out, guesses, or forgets the box."""
    habit, answer = scene.habit(SOLVER), scene.task.answer
    if habit == "worked":
        return f"{work_steps(scene.task)}\n\\boxed{{{answer}}}"
    if habit == "no_box":
        return f"{work_steps(scene.task)}\nSo it is {answer}."
    return f"\\boxed{{{guess(int(answer), scene.random)}}}"


def guess(answer: int, random: Random) -> int:
    """A number near the answer, seldom the answer itself."""
    if random.random() < GUESS_IS_RIGHT:
        return answer
    return max(0, answer + random.choice((-1, 1)) * random.choice((1, 2, 3, 4, 5, 10, 20)))


def _verdict(scene: Scene, habit: str) -> str:
    right = extract(scene.said[-1][1]) == scene.task.answer
    if habit == "reads":
        verdict = "approve" if right else "reject"
        return f"{work_steps(scene.task)}\n<verify>{verdict}</verify>"
    if habit == "rejects":
        return "<verify>reject</verify>"
    return "<verify>approve</verify>" if habit == "waves_through" else "Looks fine."
