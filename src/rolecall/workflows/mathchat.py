"""A workflow in which one agent reasons, one computes with Python, and one decides.

The team of MAPPA (MathChat): the executor has the tool `python`, and the verifier sees what it said
and what its code printed, not the solver.
"""

from __future__ import annotations

from rolecall.agents.parsers import parse_boxed
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow


@workflow(parsers={"verifier": parse_boxed})
async def mathchat(team: Team, task: Task, world: World, show_solver: bool = False) -> Turn:
    """Let a verifier answer from what the executor computed for the solver's plan.

    show_solver: whether the verifier reads the solver's words too, as in MARTI.
    """
    plan = await team.solver(task.prompt)
    computed = await team.executor(task.prompt, plan)
    output = computed.observation or ""
    seen = [plan] if show_solver else []
    return await team.verifier(task.prompt, *seen, computed, output or "No code was run.")
