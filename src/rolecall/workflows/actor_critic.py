"""A workflow in which a critic reviews answers until its last line says APPROVE."""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow
async def actor_critic(team: Team, task: Task, world: World, rounds: PositiveInt = 3) -> Turn:
    """Let a critic review the actor's answers until it approves; the last one is not reviewed.

    rounds: most answers.
    """
    answer = await team.actor(task.prompt)
    for _ in range(rounds - 1):
        review = await team.critic(task.prompt, answer)
        if approves(review):
            break
        answer = await team.actor(task.prompt, answer, review)
    return answer


def approves(review: Turn) -> bool:
    """Return whether APPROVE stands alone on the last line of a whole review."""
    lines = review.visible.splitlines()
    return review.finish != "length" and bool(lines) and lines[-1].strip(" *.") == "APPROVE"
