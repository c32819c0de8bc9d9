"""Plays scripted episodes of tokens: the workflow asks the engine itself and makes the turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolecall.agents.team import Team
from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Ids, Task, Turn
from rolecall.rewards.correct import correct
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime import call_tree
from rolecall.workflows.base import workflow
from rolecall_lab.bench.crowd import TURNS, Crowd

PROMPT, SAID = 120, 32  # tokens
SAMPLING = Sampling(max_tokens=SAID)


class Answering:
    """An engine's `generate`: the same tokens to everybody, once all have asked."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd

    async def generate(self, request: Request) -> list[Completion]:
        await self.crowd.all_here()
        return [
            Completion(
                tokens=np.arange(SAID, dtype=np.int32),
                logprobs=np.zeros(SAID, dtype=np.float32),
                versions=np.zeros(SAID, dtype=np.int32),
                finish="length",
            )
        ]


class Told(World):
    """Keeps the turns that the workflow makes until the episode is scored."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    async def score(self, episode: Episode) -> dict[str, float]:
        episode.turns += self.turns
        return {"team": 1.0}


class Tellers:
    def tasks(self, split: str) -> list[Task]:
        return []

    def open(self, task: Task, *, seed: int) -> World:
        return Told()


@workflow
async def three_turns(team: Team, task: Task, world: Any, engine: Any) -> None:
    """Each turn reads what was said before it."""
    heard: Ids = np.arange(PROMPT, dtype=np.int32)
    for number in range(TURNS):
        turn = await _ask(engine, task, heard, number=number)
        world.turns.append(turn)
        heard = np.concatenate(turn.ids)


async def _ask(engine: Answering, task: Task, prompt: Ids, *, number: int) -> Turn:
    here = call_tree.current()
    path = here.next_path()
    turn = Turn(
        id=f"{task.id}/{number}", task=task.id, episode=task.id, agent="solver", policy="policy",
        path=path, prompt=prompt,
    )  # fmt: skip
    request = Request(
        id=turn.id, policy="policy", prompt=prompt, sampling=SAMPLING, seed=number,
        order=(task.id, 0, path),
    )  # fmt: skip
    with call_tree.enter_scope(path, barrier=here.barrier):
        [completion] = await engine.generate(request)
    turn.tokens, turn.logprobs, turn.versions = (
        completion.tokens,
        completion.logprobs,
        completion.versions,
    )
    turn.finish = completion.finish
    return turn


def make_context(crowd: Crowd) -> RolloutContext:
    return RolloutContext(
        agents={},
        workflow=three_turns,
        options={"engine": Answering(crowd)},
        environment=Tellers(),
        rewards={"correct": (correct, 1.0)},
        concurrency=crowd.live,
    )
