"""Asks a frozen LLM behind an OpenAI-compatible URL for the next words of a dialogue."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.optional import optional
from rolecall.core.tags import visible
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.retrying import (
    GaveUpError,
    RefusedError,
    RetryableError,
    Retrying,
    RetryLimits,
    describe_error,
    failure,
)
from rolecall.runtime.secret_texts import excerpt, remember_secret

if TYPE_CHECKING:
    import openai

Said = dict[str, str]  # role (system, user, assistant) and content
OWN_FAULT = (401, 403, 404)  # the key, the model or the address: no request can succeed


class FrozenLlm:
    """One model of one server, asked by many episodes at once."""

    def __init__(
        self,
        model: str,
        url: str,
        *,
        key_env: str | None,  # environment variable that holds the key; None: there is none
        temperature: float | None,  # None: the model's own
        max_tokens: int,  # of a reply, thinking included
        concurrency: int,  # requests under way
        request_s: float,  # for one request
        deadline_s: float,  # for one reply: requests, pauses, repeats
    ) -> None:
        """Raises ConfigError without the openai package, ValueError for a missing key."""
        optional("openai", extra="coach")
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}: it must be at least 1")
        self.key = os.environ.get(key_env, "") if key_env else ""
        if key_env and not self.key:
            raise ValueError(f"the environment variable {key_env} holds no key for {url}")
        remember_secret(self.key)
        self.model, self.url, self.temperature = model, url, temperature
        self.max_tokens = max_tokens
        limits = RetryLimits(deadline_s=deadline_s, request_s=request_s, concurrency=concurrency)
        self._retrying = Retrying(limits)
        self._clients = PerLoop(self._connect)

    async def reply(self, dialogue: list[Said], *, seed: int) -> str:
        """Without its thinking. Raises InfrastructureError if there is none within the deadline.

        RunEndingError where the server refuses key, model or address.
        """
        try:
            return await self._retrying.call(lambda: self._ask(dialogue, seed))
        except GaveUpError as error:
            reason = f"no reply within {error.limit}; last: {error.last}"
            raise InfrastructureError(f"{self.url}: {reason}") from error
        except RefusedError as error:
            if error.status in OWN_FAULT:
                raise RunEndingError(f"{self.url} refuses: {error}") from None
            raise InfrastructureError(f"{self.url}: {error}") from None

    async def close(self) -> None:
        client = self._clients.pop()
        if client is not None:
            await client.close()

    async def _ask(self, dialogue: list[Said], seed: int) -> str:
        """One request. Raises RetryableError, RefusedError, or what `_read` raises."""
        import openai

        options: dict[str, Any] = {}
        if self.temperature is not None:
            options["temperature"] = self.temperature
        messages: Any = dialogue
        try:
            answer = await self._clients.get().chat.completions.create(
                model=self.model,
                messages=messages,
                max_completion_tokens=self.max_tokens,
                seed=seed % 2**31,
                **options,
            )
        except openai.APIStatusError as error:
            message = describe_error(error)
            raise failure(error.status_code, message, headers=error.response.headers) from None
        except (openai.APIError, ValueError) as error:  # no connection, or no JSON
            raise RetryableError(describe_error(error)) from None
        return self._read(answer)

    def _read(self, answer: Any) -> str:
        """Raises RetryableError for what is no answer, InfrastructureError for a cut one."""
        try:
            [choice] = answer.choices
            text, finish = choice.message.content, choice.finish_reason
        except (AttributeError, TypeError, ValueError):
            raise RetryableError(f"an answer without one choice: {excerpt(answer, 200)}") from None
        if finish == "length":
            raise InfrastructureError(f"{self.url}: the reply exceeds {self.max_tokens} tokens")
        if not isinstance(text, str) or not (reply := visible(text)):
            raise RetryableError("an answer without a word beside its thinking")
        return reply

    def _connect(self) -> openai.AsyncOpenAI:
        import openai

        return openai.AsyncOpenAI(
            api_key=self.key or "none", base_url=self.url, max_retries=0, timeout=None
        )
