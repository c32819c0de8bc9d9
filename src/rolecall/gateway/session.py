"""Answers the requests of one episode, with the agents of its team."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial

from rolecall.agents.team import Member, Team
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import ContextFullError, Sampling
from rolecall.core.interfaces.tool import Tool
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.optional import needs
from rolecall.core.types import Message, Turn
from rolecall.gateway.dialects.reply import SampledToken, TurnReply, digest, make_reply
from rolecall.gateway.dialects.request import ForeignMessage, ForeignRequest, RequestError
from rolecall.gateway.history import Conversation, History
from rolecall.gateway.outcome import Outcome, read_outcome
from rolecall.rewards.posted import note_posted
from rolecall.runtime import call_tree

with needs("jsonschema", extra="serve"):
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for


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
        self.replies: list[TurnReply] = []
        self.failure: BaseException | None = None  # of an engine or the team, not of the program
        self.is_over = False
        self.was_refused = False  # for a limit, which is no fault of the program
        self.finished: asyncio.Future[JsonValue] = asyncio.get_running_loop().create_future()
        self._histories: dict[str, History] = defaultdict(History)
        self._conversations: dict[str, tuple[ForeignMessage, ...]] = {}  # by their last reply's id
        self._scope = call_tree.current()
        self._started = 0  # turns
        self._unfinished = 0  # turns
        self._same: Counter[str] = Counter()  # turns with equal prompts, by a digest of them
        self._running: set[asyncio.Task[list[TurnReply]]] = set()
        # By agent and the digest of a body; those that failed are dropped.
        self._by_body: dict[tuple[str, str], asyncio.Task[list[TurnReply]]] = {}
        self._places = asyncio.Semaphore(limits.calls_at_once)

    @property
    def names(self) -> list[str]:
        """The agents that answer."""
        return self.team.names

    async def answer(
        self, agent: str, request: ForeignRequest, *, body_digest: str = "", is_retry: bool = False
    ) -> list[TurnReply]:
        """Return as many replies of an agent as are asked for.

        `agent`: "" leaves it to the request's `model`. A retry gets the replies to the same body,
        and waits for them if they are under way. Raises RequestError for what is told to the
        program.
        """
        member = self._member(agent or request.model, is_named=bool(agent))
        key = (member.agent.name, body_digest)
        task = self._by_body.get(key) if is_retry else None
        if task is None:
            self._check_limits(request)
            _check_schema(request.schema)
            self._unfinished += request.number
            task = self._by_body[key] = call_tree.outside(self._answer(member, request))
            self._running.add(task)
            task.add_done_callback(partial(self._finish, key, request.number))
        try:
            # A client that leaves may ask again: what it asked for is sampled to its end.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not (self.is_over and task.cancelled()):
                raise
            raise _episode_over() from None

    async def count_tokens(self, agent: str, request: ForeignRequest) -> int:
        """Return the length of the prompt that a request would have."""
        member = self._member(agent or request.model, is_named=bool(agent))
        conversation = self._read(member, request)
        try:
            return member.count_tokens(conversation.messages, tools=_shown_tools(request))
        except ValueError as error:
            raise RequestError(400, str(error), parameter="messages") from error

    def take_outcome(self, value: JsonValue) -> Outcome:
        """Note the rewards that a program posts; raises ValueError for what is no outcome."""
        outcome = read_outcome(value, self.names)
        note_posted(self.episode, outcome.rewards)
        return outcome

    def finish(self, value: JsonValue) -> None:
        """Take the program's word that the episode is over; the first one counts."""
        read_outcome(value, self.names)
        if not self.finished.done():
            self.finished.set_result(value)

    async def close(self) -> None:
        """Refuse further requests, and cancel those under way."""
        self.is_over = True
        self.finished.cancel()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _finish(
        self, key: tuple[str, str], number: int, task: asyncio.Task[list[TurnReply]]
    ) -> None:
        self._running.discard(task)
        self._unfinished -= number
        has_failed = task.cancelled() or task.exception() is not None
        if has_failed and self._by_body.get(key) is task:
            del self._by_body[key]

    def _member(self, name: str, *, is_named: bool) -> Member:
        names = self.team.names
        if name not in names and len(names) == 1 and not is_named:
            name = names[0]
        if name not in names:
            message = f"there is no agent {name!r}; name one as the model: {', '.join(names)}"
            raise RequestError(404, message, code="model_not_found", parameter="model")
        return self.team[name]

    def _check_limits(self, request: ForeignRequest) -> None:
        if self.is_over:
            raise _episode_over()
        if len(self.replies) + self._unfinished + request.number > self.limits.turns:
            self.was_refused = True
            message = f"the episode has had its {self.limits.turns} turns (workflow.max_turns)"
            raise RequestError(400, message, code="max_turns_exceeded")

    async def _answer(self, member: Member, request: ForeignRequest) -> list[TurnReply]:
        try:
            async with asyncio.timeout(self.limits.wait_s):
                await self._places.acquire()
        except TimeoutError as error:
            message = f"{self.limits.calls_at_once} requests of the episode are under way"
            raise RequestError(429, message, code="rate_limit_exceeded") from error
        try:
            conversation = self._read(member, request)
            replies = await self._sample(member, request, conversation)
        finally:
            self._places.release()
        for reply in replies:
            self._histories[member.agent.name].record(conversation, reply)
            self._conversations[reply.id] = (*self._continued(request), reply.message)
        self.replies += replies
        return replies

    def _continued(self, request: ForeignRequest) -> tuple[ForeignMessage, ...]:
        """Return the messages of a request behind those of the reply that it continues."""
        if not request.previous:
            return request.messages
        if request.previous not in self._conversations:
            message = f"there is no response {request.previous!r} in this episode"
            raise RequestError(
                404, message, code="previous_response_not_found", parameter="previous_response_id"
            )
        return (*self._conversations[request.previous], *request.messages)

    def _read(self, member: Member, request: ForeignRequest) -> Conversation:
        messages = self._continued(request)
        if request.instructions:
            messages = (ForeignMessage("system", request.instructions), *messages)
        if not messages:
            raise RequestError(400, "there is no message to answer", parameter="messages")
        return self._histories[member.agent.name].read(messages, member.tool_format)

    async def _sample(
        self, member: Member, request: ForeignRequest, conversation: Conversation
    ) -> list[TurnReply]:
        """Sample the turns of a request at once."""
        # Places in the episode and draws are taken here, in order.
        draws = [self._draw(member, conversation.messages) for _ in range(request.number)]
        paths = [(*self._scope.path, self._started + n) for n in range(request.number)]
        self._started += request.number
        results = await asyncio.gather(
            *(
                self._say(member, request, conversation, path, draw)
                for path, draw in zip(paths, draws, strict=True)
            ),
            return_exceptions=True,
        )
        replies = []
        for result in results:
            if isinstance(result, BaseException):
                raise self._describe(result) from result
            replies.append(result)
        return replies

    def _describe(self, error: BaseException) -> BaseException:
        """Return what a program is told of an error; one that is not meant for it stays."""
        if isinstance(error, ContextFullError):
            self.was_refused = True
            self.episode.count("context_full")
            return RequestError(
                400, str(error), code="context_length_exceeded", parameter="messages"
            )
        if isinstance(error, InfrastructureError):
            self.failure = error
            return RequestError(500, "the model cannot be reached")
        if isinstance(error, ValueError):
            return RequestError(400, str(error), parameter="messages")
        return error

    async def _say(
        self,
        member: Member,
        request: ForeignRequest,
        conversation: Conversation,
        path: tuple[int, ...],
        draw: str,
    ) -> TurnReply:
        tools = _shown_tools(request)
        with call_tree.enter_scope(path, barrier=self._scope.barrier):
            turn = await member.reply(
                conversation.messages,
                earlier=conversation.turns,
                tools=tools,
                sampling=_limit(member.agent.sampling, request),
                draw=draw,
            )
        reply = make_reply(
            turn,
            format=member.tool_format if tools else None,
            stop=request.stop,
            tokens=_read_tokens(member, turn) if request.wants_logprobs else (),
        )
        if not _has_form(reply, request):
            member.reject(turn)
        if request.unused:
            turn.info["unused_sampling"] = request.unused
        return reply

    def _draw(self, member: Member, messages: list[Message]) -> str:
        """Return what decides the draws of a call: its prompt, and the number of equal ones."""
        texts = [(message.role, message.content) for message in messages]
        prompt = digest(member.agent.name, texts)
        self._same[prompt] += 1
        return f"{prompt}:{self._same[prompt]}"


def _episode_over() -> RequestError:
    return RequestError(410, "the episode is over", code="episode_over")


def _shown_tools(request: ForeignRequest) -> list[Tool]:
    return [] if request.tool_choice == "none" else list(request.tools)


def _read_tokens(member: Member, turn: Turn) -> tuple[SampledToken, ...]:
    tokenizer = member.agent.policy.tokenizer
    if tokenizer is None or turn.tokens is None or turn.logprobs is None:
        return ()
    pairs = zip(turn.tokens.tolist(), turn.logprobs.tolist(), strict=True)
    return tuple(SampledToken(id, tokenizer.decode([id]), logprob) for id, logprob in pairs)


def _has_form(reply: TurnReply, request: ForeignRequest) -> bool:
    """Return whether a reply calls a tool or fits a schema where the request demands it.

    Nothing forces the agent to, as its tokens must come from its own distribution.
    """
    if request.tool_choice == "required":
        return bool(reply.message.calls)
    if request.schema is None or reply.message.calls:
        return True
    try:
        answer = json.loads(reply.message.text)
    except (ValueError, RecursionError):
        return False
    return bool(validator_for(request.schema)(request.schema).is_valid(answer))


def _check_schema(schema: JsonObject | None) -> None:
    if schema is None:
        return
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        message = f"the answer's format is no JSON schema: {error.message}"
        raise RequestError(400, message, parameter="schema") from error


def _limit(sampling: Sampling, request: ForeignRequest) -> Sampling:
    """Return the agent's sampling with what a request makes shorter."""
    most = sampling.max_tokens
    if request.max_tokens is not None:
        most = min(most, request.max_tokens)
    stop = (*sampling.stop, *(text for text in request.stop if text not in sampling.stop))
    return sampling.model_copy(update={"max_tokens": most, "stop": stop})
