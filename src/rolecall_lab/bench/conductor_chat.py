"""Plays scripted episodes of texts: the team is called, as in every workflow."""

from __future__ import annotations

from functools import cache

import numpy as np

from rolecall.agents.agent import Agent, Policy
from rolecall.agents.chat_template import Tokenizer, encode
from rolecall.agents.team import Team
from rolecall.core.interfaces.engine import Completion, Request
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Ids, Task, Turn
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.rewards.correct import correct
from rolecall.rollout.episodes import RolloutContext
from rolecall.workflows.base import workflow
from rolecall_lab.bench.crowd import Crowd

TOKENIZER = "tiny:math"
SAID = "I add the two numbers digit by digit. The answer is \\boxed{42}."


class AnsweringEngine(ScriptedEngine):
    """Says the same to everybody, once all have asked; it does not tokenize it again."""

    def __init__(self, tokenizer: Tokenizer, crowd: Crowd) -> None:
        super().__init__(tokenizer, lambda request: SAID)
        self.crowd = crowd

    async def generate(self, request: Request) -> list[Completion]:
        await self.crowd.all_here()
        tokens = _said().copy()
        return [
            Completion(
                tokens=tokens,
                logprobs=np.zeros(len(tokens), dtype=np.float32),
                versions=np.zeros(len(tokens), dtype=np.int32),
                finish="stop",
            )
        ]


class Listening(World):
    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": 1.0}


class Listeners:
    def tasks(self, split: str) -> list[Task]:
        return []

    def open(self, task: Task, *, seed: int) -> World:
        return Listening()


@workflow
async def three_turns(team: Team, task: Task, world: World) -> Turn:
    solution = await team.solver(task.prompt)
    verdict = await team.verifier(task.prompt, solution)
    return await team.solver(task.prompt, solution, verdict)


@cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(TOKENIZER)


@cache
def _said() -> Ids:
    tokenizer = _tokenizer()
    return np.append(encode(tokenizer, SAID), tokenizer.eos_token_id).astype(np.int32)


def make_context(crowd: Crowd) -> RolloutContext:
    tokenizer = _tokenizer()
    policy = Policy("policy", tokenizer, AnsweringEngine(tokenizer, crowd))
    systems = {"solver": "Solve the problem.", "verifier": "Check the solution."}
    return RolloutContext(
        agents={name: Agent(name, policy, name, system) for name, system in systems.items()},
        workflow=three_turns,
        options={},
        environment=Listeners(),
        rewards={"correct": (correct, 1.0)},
        concurrency=crowd.live,
    )
