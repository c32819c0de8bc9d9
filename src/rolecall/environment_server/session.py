"""Plays an episode whose agents are elsewhere: their calls wait until somebody sends an action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from rolecall.agents.agent import Policy
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Answer, Completion, Question, Request, TextEngine
from rolecall.core.types import Episode, Floats, Ids, Message
from rolecall.rollout.episodes import RolloutContext, play_episode
from rolecall.runtime.call_tree import IdleBarrier, outside, waiting

ENDED = "the episode has ended; reset"


class ActionError(ValueError):
    """An action that the session cannot take."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A turn that an agent is to take."""

    agent: str
    messages: list[Message]
    action: asyncio.Future[str]


@dataclass(frozen=True, slots=True)
class Progress:
    """Holds the calls that wait for an action, and what was earned since the last action."""

    calls: tuple[Call, ...]  # in the order in which they were made
    rewards: dict[str, float]  # by agent
    is_truncated: bool = False

    @property
    def is_done(self) -> bool:
        """Return whether the episode has ended."""
        return not self.calls


class ActionEngine(TextEngine):
    """An engine whose answers are actions that come from elsewhere."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.called = asyncio.Event()

    async def answer(self, question: Question) -> list[Answer]:
        """Wait for an action of the agent, whose name is that of its policy."""
        call = Call(question.policy, question.messages, asyncio.get_running_loop().create_future())
        self.calls.append(call)
        self.called.set()
        try:
            with waiting():
                return [Answer(await call.action, "stop")]
        finally:
            if call in self.calls:  # nobody answered in time
                self.calls.remove(call)

    async def generate(self, request: Request) -> list[Completion]:
        raise TypeError("agents that are elsewhere have no tokens")

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        raise TypeError("agents that are elsewhere have no tokens")

    async def cancel(self, request_id: str) -> None:
        return None


class Session:
    """One episode: what its agents are to answer, and what they earn."""

    def __init__(self, context: RolloutContext, episode: Episode) -> None:
        self.episode = episode
        self._engine = ActionEngine()
        self._barrier = IdleBarrier()
        agents = {
            name: replace(agent, policy=Policy(name, None, self._engine))
            for name, agent in context.agents.items()
        }
        self._context = replace(context, agents=agents, barrier=self._barrier)
        self._rewards = dict.fromkeys(context.agents, 0.0)  # that were reported
        self._playing: asyncio.Task[Episode] | None = None
        self._acting = asyncio.Lock()

    @property
    def agents(self) -> list[str]:
        """The names of all agents."""
        return list(self._context.agents)

    @property
    def next_agent(self) -> str:
        """The agent whose call is the oldest; "" once the episode has ended."""
        return self._engine.calls[0].agent if self._engine.calls else ""

    def call_at_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the episode, which has started, ends in whatever way."""
        assert self._playing is not None, "start comes first"
        self._playing.add_done_callback(lambda _: callback())

    @property
    def has_ended(self) -> bool:
        """Return whether the episode has ended, by itself or because its time was over."""
        return self._playing is not None and self._playing.done()

    async def start(self) -> Progress:
        """Begin the episode, and return its first calls."""
        self._playing = outside(play_episode(self._context, self.episode))
        self._playing.add_done_callback(lambda _: self._engine.called.set())
        await asyncio.sleep(0)  # it begins
        return await self._settle()

    async def act(self, text: str, agent: str = "") -> Progress:
        """Let an agent say a text, by default the agent whose call is the oldest.

        Raises ActionError if that agent is not to say anything, and what `start` raises.
        """
        async with self._acting:
            call = self._choose_call(agent)
            self._engine.calls.remove(call)
            call.action.set_result(text)
            await asyncio.sleep(0)  # the agent's coroutine goes on
            return await self._settle()

    async def close(self) -> None:
        """End the episode, wherever it is."""
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            await asyncio.wait([self._playing])

    def _choose_call(self, agent: str) -> Call:
        if not self._engine.calls or self.has_ended:
            raise ActionError(ENDED)
        names = [call.agent for call in self._engine.calls]
        if agent and agent not in names:
            raise ActionError(f"{agent!r} is not to act now; to act: {', '.join(names)}")
        return self._engine.calls[names.index(agent) if agent else 0]

    async def _settle(self) -> Progress:
        """Wait until the episode cannot go on without an action, or has ended.

        Raises InfrastructureError where something outside of the code ended it, and RuntimeError
        for a mistake in the environment or the workflow.
        """
        playing = self._playing
        assert playing is not None, "start comes first"
        while True:
            await self._barrier.wait()
            if self._engine.calls or playing.done():
                break
            self._engine.called.clear()  # it waits for something that other episodes hold
            await self._engine.called.wait()
        if playing.done() and (error := playing.result().error) is not None:
            kind = RuntimeError if self.episode.is_mistake else InfrastructureError
            raise kind(error)
        return Progress(tuple(self._engine.calls), self._take_rewards(), self.episode.is_truncated)

    def _take_rewards(self) -> dict[str, float]:
        """Return what each agent has earned since this was read last."""
        totals = {name: self.episode.outcome(name) for name in self._rewards}
        for turn in self.episode.turns:
            if turn.chosen:
                totals[turn.agent] += turn.score
        earned = {name: totals[name] - self._rewards[name] for name in totals}
        self._rewards = totals
        return earned
