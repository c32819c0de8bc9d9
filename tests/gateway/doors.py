"""An episode whose program runs in the test itself, and asks over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from rolecall.agents.agent import Policy
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.types import Episode, Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.external import ExternalEnvironment
from rolecall.gateway.server import Gateway
from rolecall.gateway.session import Session, SessionLimits
from rolecall.rewards.correct import correct
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runtime import call_tree
from rolecall.runtime.call_tree import task_factory
from rolecall.workflows.base import Workflow
from rolecall.workflows.external import close_host, external
from tests.toy import Letters, agent

WIRE = Path(__file__).resolve().parents[3] / "shared/wire"
Program = Callable[[AsyncOpenAI, Session], Awaitable[Any]]


def address_of(client: AsyncOpenAI) -> str:
    """The gateway's address, without a version."""
    return str(client.base_url).removesuffix("/v1/")


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def begins(longer, shorter) -> bool:
    return longer[: len(shorter)].tolist() == list(shorter)


def continues(later, earlier) -> bool:
    """Whether a prompt begins with the prompt and the tokens of an earlier turn."""
    return begins(later.prompt, [*earlier.prompt, *earlier.tokens])


def compute(prompt: str) -> str:
    """Return the answer of `Compute 2+3+4.`"""
    return str(sum(map(int, prompt.removeprefix("Compute ").removesuffix(".").split("+"))))


async def no_reward(episode, world):
    return {"team": 0.0}


def play_program(
    tokenizer,
    says: list[str] | Callable[[Request], str],
    program: Program,
    *,
    names: tuple[str, ...] = ("solver",),
    limits: SessionLimits | None = None,
    **options: Any,
) -> Episode:
    """Play an episode in which `program` asks; agents say `says`, one after the other.

    Raises what the program raises.
    """

    async def ask(team):
        gateway = Gateway()
        try:
            async with gateway.open(team, limits=limits or SessionLimits()) as session:
                client = AsyncOpenAI(
                    base_url=f"{gateway.address}/v1", api_key=session.key, timeout=20
                )
                async with client:
                    with call_tree.waiting():
                        await call_tree.outside(program(client, session))
        finally:
            await gateway.close()

    return _play(tokenizer, says, ask, names=names, **options)


def play_session(
    tokenizer,
    says: list[str] | Callable[[Request], str],
    program: Callable[[Session], Awaitable[Any]],
) -> Episode:
    """The same without HTTP: `program` asks the session itself."""

    async def ask(team):
        session = Session(team, key="key", limits=SessionLimits())
        with call_tree.waiting():
            await call_tree.outside(program(session))
        await session.close()

    return _play(tokenizer, says, ask, names=("solver",))


def play_scored(
    tokenizer, says: list[str], tables: list[str], *, names: tuple[str, ...], **options: Any
) -> Episode:
    """Play the first training task of two tables with an external program that scores it."""
    texts = iter(says)
    environment = ExternalEnvironment(*tables)
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda request: next(texts)))
    agents = {name: agent(name, policy, sampling=Sampling(max_tokens=200)) for name in names}
    rewards = {"correct": (correct, 1.0)}
    context = RolloutContext(agents, external, options, environment, rewards=rewards)

    async def main() -> Episode:
        asyncio.get_running_loop().set_task_factory(task_factory)
        try:
            return await play(context, environment.tasks("train")[0])
        finally:
            await close_host()

    return asyncio.run(main())


def _play(tokenizer, says, ask, *, names: tuple[str, ...], **options: Any) -> Episode:
    texts = iter(says) if isinstance(says, list) else None
    reply = (lambda request: next(texts)) if texts is not None else says
    engine = options.pop("engine", None) or ScriptedEngine(tokenizer, reply)
    options.setdefault("sampling", Sampling(max_tokens=200))
    policy = Policy("p", tokenizer, engine)
    raised: list[BaseException] = []

    async def play_it(team, task, world):
        try:
            await ask(team)
        except BaseException as error:
            raised.append(error)
            raise
        return "x"

    flow = Workflow("ask", play_it, names)
    agents = {name: agent(name, policy, **options) for name in names}
    context = RolloutContext(agents, flow, {}, Letters(), rewards={"none": (no_reward, 1.0)})

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await play(context, Task("t", "What is 2 + 2?"))

    episode = asyncio.run(main())
    if raised:
        raise raised[0]
    return episode
