"""Asks providers of LLMs, for policies that nobody trains, and counts what that costs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from rolecall.config.served import ProviderEngineConfig
from rolecall.core.errors import RunEndingError
from rolecall.core.interfaces.engine import (
    Answer,
    Completion,
    Question,
    Request,
    Sampling,
    TextEngine,
)
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import visible
from rolecall.core.types import Floats, Ids, Message
from rolecall.engines.served.connection import DeclinedError, Server, ServerError
from rolecall.runtime.retrying import RetryableError, describe_error, failure
from rolecall.runtime.spending import Account, Budget, Prices, TokenCounts

Result = TypeVar("Result")
Content = TypeVar("Content")  # what the SDK or the server answers


class BudgetSpentError(RunEndingError):
    """The tokens or the money that were granted are spent."""


class ProviderEngine(TextEngine, Generic[Content]):
    """Policies of one section, which share its budget; what they say has no version but 0."""

    asks: type[Server] = Server

    def __init__(
        self,
        options: ProviderEngineConfig,
        *,
        policies: list[str],
        key: str | None,
        prices: Mapping[str, Prices] = MappingProxyType({}),
    ) -> None:
        """`options`: its section; `prices` by policy, of those whose price is known."""
        self.options, self.policies, self.key = options, policies, key
        self.account = Account(prices, Budget(options.budget_usd, options.budget_tokens))
        self.server = self.asks(options, key=key, before=self.check_budget)

    @abstractmethod
    async def send(self, question: Question, seed: int) -> Content:
        """Make one try, and return what came. Raises RetryableError, RefusedError, ServerError."""

    @abstractmethod
    def read(self, content: Content, sampling: Sampling) -> tuple[Answer, TokenCounts]:
        """Return the answer, and what it took. Raises MalformedError."""

    async def answer(self, question: Question) -> list[Answer]:
        calls = [self._answer(question, seed) for seed in derive_seeds(question.seed, question.n)]
        return await self.server.gather_calls(question.id, calls)

    async def _answer(self, question: Question, seed: int) -> Answer:
        def read(content: Content) -> Answer:
            answer, counts = self.read(content, question.sampling)
            answer.usage = self.pay(question.policy, counts)
            return answer

        try:
            return await self.server.call(lambda: self.send(question, seed), read)
        except DeclinedError:  # of the prompt: there is no answer, and nothing to pay
            return Answer("", "stop", refused=True)

    async def generate(self, request: Request) -> list[Completion]:
        raise ValueError(f"engine {self.options.name} takes messages, not tokens")

    async def cancel(self, request_id: str) -> None:
        self.server.cancel(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        """Nobody asks: only what is trained is scored. Raises ValueError."""
        name = self.options.name
        raise ValueError(f"policy {policy!r} is not trained: engine {name} scores nothing")

    def check_budget(self) -> None:
        """Check the budget ahead of a request; raises BudgetSpentError if it is spent."""
        if bound := self.account.spent.find_reached(self.account.budget):
            names = ", ".join(f"policies.{name}" for name in self.policies)
            raise BudgetSpentError(
                f"{names}.engine: the budget of {bound} is spent; continue the run with a larger "
                f"budget_{'usd' if bound.endswith('USD') else 'tokens'}"
            )

    def pay(self, policy: str, counts: TokenCounts) -> dict[str, float]:
        """Note what an answer cost. Raises ServerError where a budget counts what nobody says."""
        budget = self.account.budget
        if not counts.prompt_tokens and (budget.usd or budget.tokens):
            raise ServerError(
                f"the server at {self.server.address} does not say how many tokens an answer took, "
                "so no budget can be kept: remove budget_tokens and budget_usd"
            )
        return {
            "prompt_tokens": counts.prompt_tokens,
            "cached_tokens": counts.cached_tokens,
            "completion_tokens": counts.completion_tokens,
            "reasoning_tokens": counts.reasoning_tokens,
            "usd": self.account.add(policy, counts),
        }


def derive_seeds(seed: int, number: int) -> list[int]:
    """Return a seed for each answer: few servers derive several from one."""
    return [seed] if number == 1 else [derive_seed(seed, index) for index in range(number)]


def write_message(message: Message) -> dict[str, str]:
    """Return a message for a server; of an agent's own earlier words, what is not thinking."""
    content = visible(message.content) if message.role == "assistant" else message.content
    return {"role": message.role, "content": content}


def split_system(messages: list[Message]) -> tuple[str | None, list[dict[str, str]]]:
    """Return the system text and the other messages, for APIs that take them apart."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [write_message(message) for message in messages if message.role != "system"]
    return ("\n\n".join(system) or None), rest


async def call_sdk(request: Awaitable[Result]) -> Result:
    """Return what an SDK's request brings. Raises RetryableError or RefusedError for its errors.

    Without a status there was no connection, or no answer in what came.
    """
    try:
        return await request
    except ServerError:
        raise
    except Exception as error:  # the boundary to an SDK
        words, status = describe_error(error), _status(error)
        if status is None:
            raise RetryableError(words) from None
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        raise failure(status, words, headers=headers) from None


def _status(error: Exception) -> int | None:
    """Return the HTTP status, which SDKs call status_code or code."""
    for name in ("status_code", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status
    return None
