"""Plays demonstrations of a team through its workflow and returns the episodes.

So a model is fitted to the very prompts that the team will see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from rolecall.agents.agent import Agent, Policy
from rolecall.agents.chat_template import Tokenizer
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.rollout.episodes import RolloutContext, play
from rolecall_lab.tiny.demonstrations.registered import team_demonstrations
from rolecall_lab.tiny.demonstrations.scene import Scene

AT_ONCE = 32  # episodes under way: worlds may wait for a sandbox
LONGEST = 10_000  # tokens of a turn


def play_all(
    context: RolloutContext, tokenizer: Tokenizer, tasks: Sequence[Task], *, seed: int
) -> list[Episode]:
    """Play one episode a task. Raises ValueError for a demonstration that fails."""

    async def everyone() -> list[Episode]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, task: Task) -> Episode:
            async with room:
                return await _demonstrate(
                    context, tokenizer, task, Random(derive_seed(seed, number))
                )

        return await asyncio.gather(*(one(*pair) for pair in enumerate(tasks)))

    return asyncio.run(everyone())


async def _demonstrate(
    context: RolloutContext, tokenizer: Tokenizer, task: Task, random: Random
) -> Episode:
    transcript: list[tuple[str, str]] = []
    shown_by = team_demonstrations(context)
    judge = shown_by.judge(random) if shown_by.judge is not None else None

    def reply(request: Request) -> str:
        role = context.agents[request.policy].role
        text = shown_by.say(Scene(role, task, transcript, tokenizer.decode(request.prompt), random))
        transcript.append((role, text))
        return text

    engine = ScriptedEngine(tokenizer, reply)

    def speaker(name: str, agent: Agent) -> Agent:
        policy = Policy(name, tokenizer, engine)  # by its name an agent is known again
        return replace(agent, policy=policy, sampling=Sampling(max_tokens=LONGEST), judge=judge)

    agents = {name: speaker(name, agent) for name, agent in context.agents.items()}
    episode = await play(replace(context, agents=agents), task)
    if episode.error:
        raise ValueError(f"a demonstration failed: {episode.error}")
    return episode
