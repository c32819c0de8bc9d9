"""A workflow's habits in, the turns they make out: played through the workflow itself.

So a model is fitted to the very prompts that the team will see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from rolecall.agents import Agent, Policy
from rolecall.chat import Tokenizer
from rolecall.core import Task, Turn
from rolecall.engines.base import Request, Sampling
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.base import Environment
from rolecall.rollout import Stage, play
from rolecall.seeds import seed_of
from rolecall.workflows.base import Workflow


def play_all(
    workflow: Workflow,
    environment: Environment,
    systems: dict[str, str],
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    *,
    seed: int,
) -> list[Turn]:
    async def everyone() -> list[Turn]:
        turns: list[Turn] = []
        for number, task in enumerate(tasks):
            turns += await _demonstrate(
                workflow, environment, systems, tokenizer, task, Random(seed_of(seed, number))
            )
        return turns

    return asyncio.run(everyone())


async def _demonstrate(
    workflow: Workflow,
    environment: Environment,
    systems: dict[str, str],
    tokenizer: Tokenizer,
    task: Task,
    random: Random,
) -> list[Turn]:
    said: list[tuple[str, str]] = []

    def reply(request: Request) -> str:
        assert workflow.demonstrate is not None
        text = workflow.demonstrate(request.policy, task, said, random)
        said.append((request.policy, text))
        return text

    engine = ScriptedEngine(tokenizer, reply)
    agents = {
        role: Agent(
            name=role,
            policy=Policy(role, tokenizer, engine),
            role=role,
            system=systems.get(role, ""),
            sampling=Sampling(max_tokens=10_000),
            parser=workflow.parsers.get(role),
        )
        for role in workflow.roles
    }
    stage = Stage(agents, workflow, {}, environment, rewards={})
    episode = await play(stage, task)
    if episode.error:
        raise ValueError(f"a demonstration failed: {episode.error}")
    return episode.turns
