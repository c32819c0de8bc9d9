"""Lets a frozen policy reply to a coach, a judge or a simulated user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count

from rolecall.agents import chat_template
from rolecall.agents.agent import Policy
from rolecall.agents.spoken_text import spoken_text
from rolecall.core.interfaces.chat_model import ChatModel, Reply
from rolecall.core.interfaces.engine import Question, Request, Sampling, TextEngine
from rolecall.core.json_types import JsonObject
from rolecall.core.tags import encodable
from rolecall.core.types import Message
from rolecall.runtime.call_tree import outside
from rolecall.runtime.spending import Prices, TokenCounts


class PolicyChat(ChatModel):
    """A policy as a chat model. It is named before its engine runs, and can reply once `policy` is
    set.
    """

    policy: Policy | None = None

    def __init__(
        self,
        name: str,
        *,
        model: str,
        identity: str,
        is_local: bool,
        temperature: float | None,
        max_tokens: int,
        prices: Prices,
    ) -> None:
        """`temperature`: None leaves the sampling to the server."""
        self.name, self.model, self.identity, self.is_local = name, model, identity, is_local
        self.temperature, self.max_tokens, self.prices = temperature, max_tokens, prices
        self._numbers = count()

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        seed: int,
        schema: JsonObject | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        if self.policy is None:
            raise ValueError(f"policy {self.name!r} cannot reply yet: its engine does not run")
        sampling = Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            max_tokens=self.max_tokens if max_tokens is None else max_tokens,
        )
        messages = [Message(m.role, encodable(m.content)) for m in messages]
        if self.policy.tokenizer is None:
            # The episode counts as running meanwhile, so that no clock of a server's decides what
            # a deterministic engine has in one batch.
            return await outside(self._ask(messages, sampling, seed, schema))
        return await self._sample(messages, sampling, seed)

    async def _ask(
        self, messages: list[Message], sampling: Sampling, seed: int, schema: JsonObject | None
    ) -> Reply:
        engine = self._policy.engine
        assert isinstance(engine, TextEngine), "an engine that takes messages"
        [answer] = await engine.answer(
            Question(
                id=self._next_id(),
                policy=self.name,
                messages=messages,
                sampling=sampling,
                seed=seed,
                schema=schema,
                own_sampling=self.temperature is None,
            )
        )
        return self._reply(answer.text, answer.finish, answer.usage or {})

    async def _sample(self, messages: list[Message], sampling: Sampling, seed: int) -> Reply:
        policy, tokenizer = self._policy, self._policy.tokenizer
        assert tokenizer is not None, "a policy that is sent tokens"
        prompt = chat_template.prompt_ids(tokenizer, messages, options=policy.template)
        name = self._next_id()
        request = Request(name, self.name, prompt, sampling, seed, order=(name, 0, ()))
        [completion] = await policy.engine.generate(request)
        counts = TokenCounts(len(prompt), 0, len(completion.tokens))
        usage = completion.usage or {**asdict(counts), "usd": self.prices.cost(counts)}
        text = encodable(spoken_text(tokenizer, prompt, completion.tokens))
        return self._reply(text, completion.finish, usage)

    def _reply(self, text: str, finish: str, usage: Mapping[str, float]) -> Reply:
        tokens = {name: int(number) for name, number in usage.items() if name != "usd"}
        return Reply(text, self.model, finish == "length", usd=usage.get("usd", 0.0), **tokens)

    @property
    def _policy(self) -> Policy:
        assert self.policy is not None, "checked by reply"
        return self.policy

    def _next_id(self) -> str:
        return f"reply-{self.name}-{next(self._numbers)}"
