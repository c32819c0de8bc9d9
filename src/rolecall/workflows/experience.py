"""A workflow in which a solver tries a task again with lessons from its earlier attempts, as in
MARTI's experience workflows.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow

REMEMBER = (
    "Update your lessons: a short list of general rules, checks and hints on tools that would help "
    "with the next attempt. Keep those that still hold. Do not write the answer."
)


@workflow(parsers={"solver": parse_boxed})
async def experience(
    team: Team,
    task: Task,
    world: World,
    rounds: PositiveInt = 4,
    memory_reward: Literal["propagate", "delta"] = "propagate",
    remember: str = REMEMBER,
) -> Turn:
    """Let a memory agent write lessons from each attempt, with which the solver tries again.

    The memory reads the attempt, the results of its tools and its own earlier lessons. The solver
    sees the task and the newest lessons, and earns what each attempt is worth by itself.

    rounds: attempts of the solver; the last one is the answer.
    memory_reward: `propagate` pays lessons what the next attempt is worth; `delta` pays 1 if it is
        worth more than the one before, else 0.
    remember: words that ask the memory for lessons.
    """
    lessons: list[Turn] = []
    before = 0.0
    for number in range(rounds):
        start = len(team.episode.turns)
        answer = await team.solver(task.prompt, *lessons)
        attempt = [turn for turn in team.episode.turns[start:] if turn.chosen]
        worth = await world.worth(answer.agent, answer.visible)
        for turn in attempt:
            turn.pay("own", worth)
        for turn in lessons:
            gained = worth if memory_reward == "propagate" else float(worth > before)
            turn.pay("memory", gained)
        if number == rounds - 1:
            break
        asks = [remember] if remember else []
        lessons = [await team.memory(task.prompt, *lessons, *_show(attempt), *asks)]
        before = worth
    return answer


def _show(attempt: list[Turn]) -> list[Said]:
    """Return an attempt with what its tools answered, in the order in which they were seen."""
    shown: list[Said] = []
    for number, turn in enumerate(attempt):
        if number and turn.observation:
            shown.append(f"[tool results]\n{turn.observation}")
        shown.append(turn)
    return shown
