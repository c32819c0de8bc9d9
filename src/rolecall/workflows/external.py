"""A workflow in which a program written elsewhere talks to the agents over HTTP.

The program speaks the API of OpenAI, Anthropic or Google, and finds the address and the key of its
episode in its environment. `model` names an agent of the team.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from rolecall.agents.team import Team
from rolecall.core.interfaces.environment import World
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Task, Turn
from rolecall.environments.external import ExternalWorld
from rolecall.runtime import call_tree
from rolecall.runtime.per_loop import PerLoop
from rolecall.workflows.base import workflow

if TYPE_CHECKING:
    from rolecall.gateway.programs import WarmWorker
    from rolecall.gateway.server import Gateway
    from rolecall.gateway.session import Session


class Host:
    """Holds what the episodes of an event loop share: a gateway, and a worker for each function."""

    def __init__(self) -> None:
        self._gateway: Gateway | None = None
        self._workers: dict[tuple[str, str], WarmWorker] = {}

    @property
    def gateway(self) -> Gateway:
        from rolecall.gateway.server import Gateway

        self._gateway = self._gateway or Gateway()
        return self._gateway

    def worker(self, function: str, python: str) -> WarmWorker:
        from rolecall.gateway.programs import WarmWorker

        if (function, python) not in self._workers:
            self._workers[function, python] = WarmWorker(function, python=python)
        return self._workers[function, python]

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            if self._gateway is not None:
                stack.push_async_callback(self._gateway.close)
            stack.push_async_callback(self._close_workers)

    async def close_after_loop(self) -> None:
        """Close what outlives an event loop that is closed: the port, and the workers."""
        if self._gateway is not None:
            self._gateway.release()
        await self._close_workers()

    async def _close_workers(self) -> None:
        for worker in self._workers.values():
            await worker.close()


hosts = PerLoop(Host)


async def close_host() -> None:
    """End the gateways and the workers of this event loop and of closed ones.

    A run trains in one event loop and is closed in another.
    """
    if (host := hosts.pop()) is not None:
        await host.close()
    for host in hosts.pop_closed():
        await host.close_after_loop()


@workflow
async def _external(
    team: Team,
    task: Task,
    world: World,
    function: str = "",
    command: tuple[str, ...] = (),
    url: str = "",
    python: str = "",
    max_turns: int = 64,
) -> Turn | str | None:
    """Let a program play the episode; its answer is what it returns, or the last turn.

    What it returns may hold rewards too, which `rewards.posted` pays.

    function: `path/to/file.py:name` of a function that is called with the task.
    command: a program and its arguments; the last line that it prints is the answer.
    url: an address to which the task is sent, with `base_url` and `api_key` of the episode; the
        program answers, or posts to `finish_url` later.
    python: the Python that runs the function; by default this one.
    max_turns: most turns of all agents in an episode.
    """
    from rolecall.gateway.programs import ProgramError, call_url, run_command
    from rolecall.gateway.session import SessionLimits

    host = hosts.get()
    task_data: JsonObject = {"id": task.id, "prompt": task.prompt}
    if isinstance(world, ExternalWorld):
        task_data["info"] = world.task_info
    async with host.gateway.open(team, limits=SessionLimits(max_turns)) as session:
        address = host.gateway.address
        environment = make_environment(address, session.key, team)
        try:
            with call_tree.waiting():
                if url:
                    sent = task_data | describe_rollout(address, session.key, team)
                    returned = await call_tree.outside(call_url(url, sent, session.finished))
                elif command:
                    returned = await run_command(list(command), task_data, environment)
                else:
                    returned = await host.worker(function, python).run(task_data, environment)
            answer = session.take_outcome(returned).answer
        except ProgramError:
            if session.failure is not None:
                raise session.failure from None
            if not session.was_refused:
                raise
            session.episode.is_truncated, answer = True, None
    return _choose_answer(session, answer)


def describe_rollout(address: str, key: str, team: Team) -> JsonObject:
    """Return what a program at an address of its own is told of an episode."""
    rollout = f"{address}/rollouts/{key}"
    return {
        "base_url": f"{rollout}/v1",
        "api_key": key,
        "agents": team.names,
        "reward_url": f"{rollout}/reward",
        "finish_url": f"{rollout}/finish",
    }


def make_environment(address: str, key: str, team: Team) -> dict[str, str]:
    """Return the variables by which clients find the gateway."""
    return {
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_BASE": f"{address}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": address,
        "GOOGLE_API_KEY": key,
        "ROLECALL_BASE_URL": f"{address}/v1",
        "ROLECALL_API_KEY": key,
        "ROLECALL_ROLLOUT_URL": f"{address}/rollouts/{key}",
        "ROLECALL_AGENTS": ",".join(team.names),
    }


def _choose_answer(session: Session, answer: str | None) -> Turn | str | None:
    if not session.replies:
        raise ValueError(
            "the program asked no agent for anything; let its client take OPENAI_BASE_URL and "
            "OPENAI_API_KEY from the environment, and name an agent as the model"
        )
    last = session.replies[-1]
    return last.turn if answer is None or answer == last.message.text else answer


external = replace(
    _external, name="external", calls_others=True, is_external=True, close=close_host
)
