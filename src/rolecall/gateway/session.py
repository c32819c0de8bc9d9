"""Answers the requests of one episode, with the agents of its team."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from dataclasses import dataclass

from rolecall.agents.team import Member, Team
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import ContextFullError, Sampling
from rolecall.core.types import Message
from rolecall.gateway.history import History
from rolecall.gateway.reply import Reply, digest, make_reply
from rolecall.gateway.request import ForeignRequest, RequestError
from rolecall.runtime import call_tree


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds what one episode may ask."""

    turns: int = 64  # answers of all agents together
    calls_at_once: int = 16
    wait_s: float = 60.0  # for another call to end, where so many are under way


class Session:
    """Opens the agents of one episode to the programs that it starts."""

    def __init__(self, team: Team, *, key: str, limits: SessionLimits) -> None:
        """Open it inside the episode's scope, of which calls become parts."""
        self.team, self.episode, self.key, self.limits = team, team.episode, key, limits
        self.replies: list[Reply] = []
        self.failure: BaseException | None = None  # of an engine or the team, not of the program
        self.is_over = False
        self.was_refused = False  # for a limit, which is no fault of the program
        self._histories: dict[str, History] = defaultdict(History)
        self._scope = call_tree.current()
        self._started = 0  # calls
        self._same: Counter[str] = Counter()  # calls with equal prompts, by a digest of them
        self._running: set[asyncio.Task[Reply]] = set()
        self._asked: dict[str, asyncio.Task[Reply]] = {}  # by a digest of agent and request
        self._places = asyncio.Semaphore(limits.calls_at_once)

    async def answer(self, agent: str, request: ForeignRequest, *, is_retry: bool = False) -> Reply:
        """Return an agent's reply. `agent`: "" leaves it to the request's `model`.

        A retry gets the reply to the same request, and waits for it if it is under way. Raises
        RequestError for what is told to the program.
        """
        member = self._member(agent or request.model, is_named=bool(agent))
        request_id = digest(member.agent.name, request)
        task = self._asked.get(request_id) if is_retry else None
        if task is None or (task.done() and task.exception() is not None):
            self._check_limits()
            task = self._asked[request_id] = call_tree.outside(self._answer(member, request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        # A client that leaves may ask again: what it asked for is sampled to its end.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Refuse further requests, and cancel those under way."""
        self.is_over = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _member(self, name: str, *, is_named: bool) -> Member:
        names = self.team.names
        if name not in names and len(names) == 1 and not is_named:
            name = names[0]
        if name not in names:
            message = f"there is no agent {name!r}; name one as the model: {', '.join(names)}"
            raise RequestError(404, message, code="model_not_found", parameter="model")
        return self.team[name]

    def _check_limits(self) -> None:
        if self.is_over:
            raise RequestError(410, "the episode is over", code="episode_over")
        if len(self.replies) + len(self._running) >= self.limits.turns:
            self.was_refused = True
            message = f"the episode has had its {self.limits.turns} turns (workflow.max_turns)"
            raise RequestError(400, message, code="max_turns_exceeded")

    async def _answer(self, member: Member, request: ForeignRequest) -> Reply:
        try:
            async with asyncio.timeout(self.limits.wait_s):
                await self._places.acquire()
        except TimeoutError as error:
            message = f"{self.limits.calls_at_once} requests of the episode are under way"
            raise RequestError(429, message, code="rate_limit_exceeded") from error
        try:
            return await self._sample(member, request)
        finally:
            self._places.release()

    async def _sample(self, member: Member, request: ForeignRequest) -> Reply:
        tools = [] if request.tool_choice == "none" else list(request.tools)
        history = self._histories[member.agent.name]
        format = member.tool_format
        conversation = history.read(request.messages, format)
        sampling = _limit(member.agent.sampling, request)
        path = (*self._scope.path, self._started)
        self._started += 1
        try:
            with call_tree.enter_scope(path, barrier=self._scope.barrier):
                turn = await member.reply(
                    conversation.messages,
                    earlier=conversation.turns,
                    tools=tools,
                    sampling=sampling,
                    draw=self._draw(member, conversation.messages),
                )
        except ContextFullError as error:
            self.was_refused = True
            self.episode.count("context_full")
            raise RequestError(
                400, str(error), code="context_length_exceeded", parameter="messages"
            ) from error
        except InfrastructureError as error:
            self.failure = error
            raise RequestError(500, "the model cannot be reached") from error
        except ValueError as error:
            raise RequestError(400, str(error), parameter="messages") from error
        reply = make_reply(turn, format=format if tools else None, stop=request.stop)
        if not _has_form(reply, request):
            member.reject(turn)
        if request.unused:
            turn.info["unused_sampling"] = request.unused
        history.record(conversation, reply)
        self.replies.append(reply)
        return reply

    def _draw(self, member: Member, messages: list[Message]) -> str:
        """Return what decides the draws of a call: its prompt, and the number of equal ones."""
        texts = [(message.role, message.content) for message in messages]
        prompt = digest(member.agent.name, texts)
        self._same[prompt] += 1
        return f"{prompt}:{self._same[prompt]}"


def _has_form(reply: Reply, request: ForeignRequest) -> bool:
    """Return whether a reply calls a tool or is JSON where the request demands it.

    Nothing forces the agent to, as its tokens must come from its own distribution.
    """
    if request.tool_choice == "required":
        return bool(reply.message.calls)
    if request.wants_json and not reply.message.calls:
        try:
            json.loads(reply.message.text)
        except (ValueError, RecursionError):
            return False
    return True


def _limit(sampling: Sampling, request: ForeignRequest) -> Sampling:
    """Return the agent's sampling with what a request makes shorter."""
    most = sampling.max_tokens
    if request.max_tokens is not None:
        most = min(most, request.max_tokens)
    stop = (*sampling.stop, *(text for text in request.stop if text not in sampling.stop))
    return sampling.model_copy(update={"max_tokens": most, "stop": stop})
