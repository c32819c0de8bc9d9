"""Scores one action: from the cache, or by asking a chat model until its answer can be read.

What the model is asked, and how its answer is read, is a `Form`: that of the reward `coach`, or the
user's own prompt of the reward `judge`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.interfaces.chat_model import ChatModel, Reply
from rolecall.core.interfaces.engine import ContextFullError
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Message
from rolecall.rewards.coach.cache import Cache, cache_key
from rolecall.rewards.coach.ledger import Ledger
from rolecall.rewards.coach.reading import read
from rolecall.rewards.coach.rendering import OURS, Action, Prompt, View, render
from rolecall.rewards.coach.rubric import Rules
from rolecall.rewards.coach.scores import (
    CoachError,
    CoachStopError,
    FormatError,
    Score,
    Usage,
    Verdict,
)
from rolecall.rewards.coach.sections import Answers
from rolecall.rewards.coach.wording import REMINDER, TEMPLATE


class Form(Protocol):
    """Declares how an action is asked about, and how the answer is read."""

    @property
    def reminder(self) -> str:
        """The text that is added when an earlier answer could not be read."""
        ...

    @property
    def key(self) -> tuple[object, ...]:
        """All that a score depends on, beside the model and the prompt."""
        ...

    def render(self, action: Action, *, nonce: str) -> Prompt:
        """Return the prompt; `nonce` is a random code of this request."""
        ...

    def read(self, text: str, action: Action, *, nonce: str) -> Verdict:
        """Return the verdict of an answer that is whole; raises FormatError."""
        ...


@dataclass(frozen=True, slots=True)
class CoachForm:
    """The form of the reward `coach`: blocks with a code, and a score by the rules of a rubric."""

    view: View
    answers: Answers
    rules: Rules = OURS
    reminder: str = REMINDER

    @property
    def key(self) -> tuple[object, ...]:
        return (TEMPLATE,)

    def render(self, action: Action, *, nonce: str) -> Prompt:
        return render(
            action,
            nonce=nonce,
            view=self.view,
            ground_truth=self.view.shows_truth(action.turn),
            structured=self.answers.structured,
            rules=self.rules,
        )

    def read(self, text: str, action: Action, *, nonce: str) -> Verdict:
        return read(
            text,
            nonce if self.answers.check_request else None,
            ground_truth=self.view.shows_truth(action.turn),
            scale=self.rules.scale,
        )


class Judge:
    """A chat model that is asked about one action at a time."""

    def __init__(
        self,
        model: ChatModel,
        ledger: Ledger,
        *,
        form: Form,
        retries: int,
        cache: Cache | None,
    ) -> None:
        """`retries`: new requests after an answer that cannot be read."""
        self.model, self.ledger, self.form = model, ledger, form
        self.retries, self.cache = retries, cache
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, action: Action, usage: Usage) -> Score:
        """Score an action; raises CoachError, and even then `usage` holds what was spent."""
        if self.cache is None:
            return (await self._ask(action, usage))[0]
        key = self._key(action)
        # Attempts of a group often say the same: one of them asks, the others find its score.
        async with self._asking.setdefault(key, asyncio.Lock()):
            held = self.cache.get(key)
            if held is None:
                held, raw = await self._ask(action, usage)
                self.cache.put(key, held, raw=raw)
            return held

    async def _ask(self, action: Action, usage: Usage) -> tuple[Score, str]:
        """Ask for a score; return it and the answer as it came.

        An answer that cannot be read is asked for again, with a new code. Raises CoachStopError
        where no request can succeed, CoachError where this one did not.
        """
        began, problem = time.monotonic(), ""
        for number in range(self.retries + 1):
            self.ledger.check()
            usage.tries += 1
            self.ledger.agents[action.turn.agent].requests += 1
            nonce = secrets.token_hex(8)
            reply = await self._reply(action, nonce, number)
            self.ledger.add(reply, usage, agent=action.turn.agent)
            try:
                verdict = self._read(reply, action, nonce)
            except FormatError as error:
                problem = str(error)
                continue
            usage.latency_s = time.monotonic() - began
            return Score(verdict, usage), reply.text
        raise CoachError(f"no readable score in {usage.tries} answers; last: {problem}")

    async def _reply(self, action: Action, nonce: str, number: int) -> Reply:
        prompt = self.form.render(action, nonce=nonce)
        reminded = number and self.form.reminder
        user = f"{prompt.user}\n\n{self.form.reminder}" if reminded else prompt.user
        system = [Message("system", prompt.system)] if prompt.system else []
        try:
            return await self.model.reply(
                [*system, Message("user", user)],
                seed=derive_seed(action.turn.id, number),
                schema=prompt.schema,
            )
        except RunEndingError as error:
            raise CoachStopError(str(error)) from None
        except (InfrastructureError, ContextFullError) as error:
            raise CoachError(f"no score: {error}") from None

    def _read(self, reply: Reply, action: Action, nonce: str) -> Verdict:
        if reply.truncated:  # "PROCESS_SCORE: 1" may be the start of 10
            raise FormatError("the length limit ended it")
        return self.form.read(reply.text, action, nonce=nonce)

    def _key(self, action: Action) -> str:
        prompt = asdict(self.form.render(action, nonce=""))
        return cache_key(*self.form.key, self.model.identity, prompt)
