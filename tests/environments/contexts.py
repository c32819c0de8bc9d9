"""Agents that say what a test tells them to, in a whole episode of an environment."""

from __future__ import annotations

import asyncio
from typing import Any

from rolecall.agents.agent import Agent, Policy
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.types import Episode, Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.workflows.base import Workflow
from tests.toy import agent


def said_by(folder: Any, **says: list[str]) -> dict[str, Agent]:
    """Agent -> what it says call by call."""
    tokenizer = load_tokenizer(str(folder))
    left = {name: iter(texts) for name, texts in says.items()}
    engine = ScriptedEngine(tokenizer, lambda request: next(left[request.policy]))
    return {
        name: agent(name, Policy(name, tokenizer, engine), sampling=Sampling(max_tokens=2000))
        for name in says
    }


def play_in(
    environment: Any,
    task: Task,
    flow: Workflow,
    team: dict[str, Agent],
    options: dict[str, Any] | None = None,
) -> Episode:
    """One episode, which must end without an error."""

    async def main() -> Episode:
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await play(RolloutContext(team, flow, options or {}, environment, rewards={}), task)

    episode = asyncio.run(main())
    assert episode.error is None, episode.error
    return episode
