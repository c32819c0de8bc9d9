"""Asks any server with OpenAI's API, for agents that nobody trains: judges, opponents, teachers.

`answer` sends messages to `/chat/completions`. `generate` sends tokens to `/completions` of a
server that gives token ids back, as vLLM and SGLang do. Nothing is trained on its log-probs: at
another temperature than 1 they are those of the distribution sampled from only where vLLM was
started with `--logprobs-mode processed_logprobs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rolecall.config.served import OpenAIEngineConfig
from rolecall.core.errors import InfrastructureError, RunEndingError
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
from rolecall.engines.served.connection import (
    CHECK_S,
    Connection,
    DeclinedError,
    MalformedError,
    ServerError,
    dig,
    read_count,
)
from rolecall.runtime.spending import Account, Budget, Prices

REASONING = ("reasoning_content", "reasoning")  # where servers put what stands in <think>


class BudgetSpentError(RunEndingError):
    """The tokens or the money that were granted are spent."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one answer, as the server counts them."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class OpenAIEngine(TextEngine):
    """Policies of one section, which share its budget; what they say has no version but 0."""

    def __init__(
        self, options: OpenAIEngineConfig, *, policies: list[str], key: str | None
    ) -> None:
        self.options, self.policies = options, policies
        self.account = Account(
            Prices(
                options.usd_per_million_input,
                options.usd_per_million_cached,
                options.usd_per_million_output,
            ),
            Budget(options.budget_usd, options.budget_tokens),
        )
        self._connection = Connection(
            options.url,
            key=key,
            concurrency=options.concurrency,
            timeout_s=options.timeout_s,
            pause_s=options.pause_s,
            before=self._check_budget,
        )

    async def answer(self, question: Question) -> list[Answer]:
        messages = [_shown(message) for message in question.messages]
        limit: dict[str, Any] = {self.options.max_tokens_key: question.sampling.max_tokens}
        calls = [
            self._answer({"messages": messages, **limit}, question.sampling, seed)
            for seed in _seeds(question.seed, question.n)
        ]
        return await self._connection.gather_calls(question.id, calls)

    async def generate(self, request: Request) -> list[Completion]:
        """Raises ServerError where the server gives no token ids."""
        sampling = request.sampling
        body = {
            "prompt": request.prompt.tolist(),
            "max_tokens": sampling.max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if sampling.stop:
            body["include_stop_str_in_output"] = True
        calls = [self._completion(body, sampling, seed) for seed in _seeds(request.seed, request.n)]
        return await self._connection.gather_calls(request.id, calls)

    async def cancel(self, request_id: str) -> None:
        self._connection.cancel(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        """Nobody asks: only what is trained is scored. Raises ValueError."""
        raise ValueError(f"policy {policy!r} is not trained: engine openai scores nothing")

    async def check(self) -> None:
        """A server without a list of models is taken at its word."""
        try:
            deadline_s = min(CHECK_S, self.options.timeout_s)
            await self._connection.tell("GET", "/models", deadline_s=deadline_s)
        except ServerError as error:
            if error.status in (401, 402, 403):
                raise

    async def close(self) -> None:
        await self._connection.close()

    async def _answer(self, body: dict[str, Any], sampling: Sampling, seed: int) -> Answer:
        def read(found: Any) -> Answer:
            answer = _read_answer(found, sampling)
            answer.usage = self._paid(found)
            return answer

        try:
            return await self._connection.ask(
                "POST", "/chat/completions", body=self._body(body, sampling, seed), read=read
            )
        except DeclinedError:  # of the prompt: there is no answer, and nothing to pay
            return Answer("", "stop", refused=True)

    async def _completion(self, body: dict[str, Any], sampling: Sampling, seed: int) -> Completion:
        def read(found: Any) -> Completion:
            completion = _read_completion(found)
            completion.usage = self._paid(found)
            return completion

        completion = await self._connection.ask(
            "POST", "/completions", body=self._body(body, sampling, seed), read=read
        )
        if not len(completion.tokens):
            raise InfrastructureError(f"the server at {self.options.url} sampled no token")
        return completion

    def _body(self, given: dict[str, Any], sampling: Sampling, seed: int) -> dict[str, Any]:
        """All servers know the first four; what only some know is sent where it says something."""
        body = {
            "model": self.options.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % 2**31,
            **given,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        body |= self.options.extra
        return {name: value for name, value in body.items() if value is not None}

    def _check_budget(self) -> None:
        if bound := self.account.spent.find_reached(self.account.budget):
            names = ", ".join(f"policies.{name}" for name in self.policies)
            raise BudgetSpentError(
                f"{names}.engine: the budget of {bound} is spent; continue the run with a larger "
                f"budget_{'usd' if bound.endswith('USD') else 'tokens'}"
            )

    def _paid(self, found: Any) -> dict[str, float]:
        """Note what an answer cost. Raises ServerError where a budget counts what nobody says."""
        counts = Counts(
            read_count(found, "usage", "prompt_tokens"),
            read_count(found, "usage", "prompt_tokens_details", "cached_tokens"),
            read_count(found, "usage", "completion_tokens"),
        )
        budget = self.account.budget
        if not counts.prompt_tokens and (budget.usd or budget.tokens):
            raise ServerError(
                f"the server at {self.options.url} does not say how many tokens an answer took, so "
                "no budget can be kept: remove budget_tokens and budget_usd"
            )
        usd = self.account.add(counts)
        return {
            "prompt_tokens": counts.prompt_tokens,
            "cached_tokens": counts.cached_tokens,
            "completion_tokens": counts.completion_tokens,
            "usd": usd,
        }


def _seeds(seed: int, number: int) -> list[int]:
    """Each answer's own: few servers derive several from one."""
    return [seed] if number == 1 else [derive_seed(seed, index) for index in range(number)]


def _shown(message: Message) -> dict[str, str]:
    """A message for the server; of an agent's own earlier words, what is not thinking."""
    content = visible(message.content) if message.role == "assistant" else message.content
    return {"role": message.role, "content": content}


def _read_answer(found: Any, sampling: Sampling) -> Answer:
    """The first choice of a chat completion. Raises MalformedError."""
    choice = dig(found, "choices", 0)
    message = dig(choice, "message")
    if not isinstance(message, dict):
        raise MalformedError(f"no choices[0].message{_instead(found)}")
    finish = _finish(choice)
    texts = {name: message.get(name) for name in ("content", "refusal", *REASONING)}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise MalformedError(f"choices[0].message.{name} is no text")
    content = texts["content"] or texts["refusal"] or ""
    matched = dig(choice, "stop_reason") or dig(choice, "matched_stop")
    if matched in sampling.stop and not content.endswith(matched):
        content += matched  # as our own engines do: what ends a turn stays in it
    thought = next((texts[name] for name in REASONING if texts[name]), "")
    return Answer(
        text=f"<think>{thought}</think>{content}" if thought else content,
        finish="length" if finish == "length" else "stop",
        refused=bool(texts["refusal"]) or finish == "content_filter",
    )


def _read_completion(found: Any) -> Completion:
    """The first choice of a completion with its tokens. Raises MalformedError, ServerError."""
    choice = dig(found, "choices", 0)
    if not isinstance(choice, dict):
        raise MalformedError(f"no choices[0]{_instead(found)}")
    ids, logprobs = choice.get("token_ids"), dig(choice, "logprobs", "token_logprobs")
    if ids is None or logprobs is None:
        raise ServerError(
            "the server gives no token_ids and logprobs of what it samples: set token_ids=false "
            "and remove the policy's base, to send it messages instead"
        )
    try:
        tokens = np.array(ids, dtype=np.int32).reshape(-1)
        values = np.array(logprobs, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedError(f"token_ids or token_logprobs are no numbers: {error}") from error
    if len(tokens) != len(values):
        raise MalformedError(f"{len(tokens)} token_ids with {len(values)} log-probs")
    finish = "length" if _finish(choice) == "length" else "stop"
    return Completion(tokens, values, np.zeros(len(tokens), np.int32), finish)


def _finish(choice: Any) -> Any:
    """Return why the answer ended. Raises MalformedError where the server cut it short itself."""
    finish = dig(choice, "finish_reason")
    if finish in ("abort", "error"):
        raise MalformedError(f"the server ended it: finish_reason is {finish}")
    return finish


def _instead(found: Any) -> str:
    """Return the error that some servers send with status 200."""
    message = dig(found, "error", "message")
    return f", but an error: {message}" if isinstance(message, str) else ""
