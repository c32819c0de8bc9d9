"""A role and a task with worked steps in, what a good or a bad habit would say out.

The embedded models are fitted to these words, as a pretrained model is fitted to good and bad
writing. The skill (right steps) is always demonstrated right; what reinforcement learning can
choose among is habits: work it out or guess, box the answer or not, read or wave through.
"""

from __future__ import annotations

from random import Random

from rolecall.core import Task
from rolecall.rewards.answers import extract

SOLVER_HABITS = {"worked": 40, "guess": 42, "no_box": 18}
VERIFIER_HABITS = {"reads": 35, "waves_through": 45, "mumbles": 10, "rejects": 10}
GUESS_IS_RIGHT = 0.15


def solver_verifier_habits(
    role: str, task: Task, said: list[tuple[str, str]], random: Random
) -> str:
    """What `role` says after `said`, a list of (role, text)."""
    if role == "solver":
        return _solution(task, _habit(SOLVER_HABITS, random), random)
    return _verdict(task, said[-1][1], _habit(VERIFIER_HABITS, random))


def _habit(shares: dict[str, int], random: Random) -> str:
    return random.choices(list(shares), weights=list(shares.values()))[0]


def _solution(task: Task, habit: str, random: Random) -> str:
    worked = "\n".join(task.info["steps"])
    if habit == "worked":
        return f"{worked}\n\\boxed{{{task.answer}}}"
    if habit == "no_box":
        return f"{worked}\nSo it is {task.answer}."
    return f"\\boxed{{{_guess(int(task.answer), random)}}}"


def _guess(answer: int, random: Random) -> int:
    if random.random() < GUESS_IS_RIGHT:
        return answer
    return max(0, answer + random.choice((-1, 1)) * random.choice((1, 2, 3, 4, 5, 10, 20)))


def _verdict(task: Task, solution: str, habit: str) -> str:
    worked = "\n".join(task.info["steps"])
    right = extract(solution) == task.answer
    if habit == "reads":
        return f"{worked}\n<verify>{'approve' if right else 'reject'}</verify>"
    if habit == "rejects":
        return "<verify>reject</verify>"
    return "<verify>approve</verify>" if habit == "waves_through" else "Looks fine."
