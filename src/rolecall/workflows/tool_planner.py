"""A workflow in which one agent proposes an answer and a planner decides what is played.

The team of AT-GRPO (2510.11062) for plan-path, Sokoban and Sudoku. Both see the state that the
world is in now and none of the earlier ones; the planner sees the proposal too.
"""

from __future__ import annotations

from pydantic import PositiveInt

from rolecall.agents.agent import Said
from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.acting import act
from rolecall.workflows.base import workflow
from rolecall.workflows.candidates import play_best, propose_best


@workflow(candidates=True, forks=True)
async def tool_planner(
    team: Team,
    task: Task,
    world: World,
    rounds: PositiveInt = 4,
    candidates: PositiveInt = 1,
) -> Turn:
    """Let the planner act after each proposal of the agent `tool`, until the world ends.

    Without candidates the planner's actions earn what the world pays for them.

    rounds: most actions of the planner.
    candidates: proposals, and then actions, drawn in each round, of which the best is taken (for
        AT-GRPO).
    """
    seen = team.observation
    for _ in range(rounds):
        if candidates > 1:
            proposal = await propose_best(team.tool, world, task.prompt, seen, number=candidates)
            heard: list[Said] = [task.prompt, seen, proposal]
            action = await play_best(team.planner, world, *heard, number=candidates)
            seen = team.observation
        else:
            proposal = await team.tool(task.prompt, seen)
            output = (
                [proposal.observation] if team.tool.agent.tools and proposal.observation else []
            )
            action = await team.planner(task.prompt, seen, proposal, *output)
            seen = await act(world, action.agent, action)
        if seen.done:
            break
    return action
