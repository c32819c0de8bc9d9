"""A dialogue in, what a frozen LLM behind an OpenAI-compatible URL says next out.

Consumes dialogues, produces replies, and is unblocked by a reply, by the end of a pause after a
request that failed, or by the deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from random import Random
from typing import TYPE_CHECKING, Any

from rolecall.errors import InfrastructureError, RunEndingError
from rolecall.optional import optional
from rolecall.tags import visible

if TYPE_CHECKING:
    import openai

Said = dict[str, str]  # role (system, user, assistant) and content
OWN_FAULT = (401, 403, 404)  # the key, the model or the address: no request can succeed
PASSING = (408, 409, 425, 429)  # as all above 499: another try may fare better
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0


class PassingError(Exception):
    """A failure that another request may not have."""

    def __init__(self, told: str, *, after_s: float = 0.0) -> None:
        super().__init__(told)
        self.after_s = after_s  # for as long the server wants to be left alone


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
        if min(max_tokens, concurrency) < 1 or min(request_s, deadline_s) <= 0:
            raise ValueError("max_tokens and concurrency must be at least 1, times above 0 s")
        self.key = os.environ.get(key_env, "") if key_env else ""
        if key_env and not self.key:
            raise ValueError(f"the environment variable {key_env} holds no key for {url}")
        self.model, self.url, self.temperature = model, url, temperature
        self.max_tokens, self.request_s, self.deadline_s = max_tokens, request_s, deadline_s
        self.concurrency = concurrency
        self._random = Random()  # of pauses: nothing that is trained on depends on it
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(concurrency)

    async def reply(self, dialogue: list[Said], *, seed: int) -> str:
        """Without its thinking. Raises InfrastructureError if there is none within the deadline.

        RunEndingError where the server refuses key, model or address.
        """
        # Outside of the episode's scope: what an SDK starts must not number the agents' calls.
        loop = asyncio.get_running_loop()
        asked = loop.create_task(self._reply(dialogue, seed), context=contextvars.Context())
        return await asked

    async def close(self) -> None:
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
        self._client = None

    async def _reply(self, dialogue: list[Said], seed: int) -> str:
        client = self._connected()  # first: it makes the slots of this event loop
        troubles = ["no request came back"]
        async with self._slots:
            try:
                async with asyncio.timeout(self.deadline_s):
                    return await self._insist(client, dialogue, seed, troubles)
            except TimeoutError as error:
                told = f"no reply within {self.deadline_s:g} s; last: {troubles[-1]}"
                raise InfrastructureError(f"{self.url}: {told}") from error

    async def _insist(
        self, client: openai.AsyncOpenAI, dialogue: list[Said], seed: int, troubles: list[str]
    ) -> str:
        """Ask until there is a reply; what went wrong before is noted in `troubles`."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self._ask(client, dialogue, seed)
            except PassingError as error:
                troubles.append(str(error))
                wait_s = max(error.after_s, pause_s * self._random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(wait_s)

    async def _ask(self, client: openai.AsyncOpenAI, dialogue: list[Said], seed: int) -> str:
        import openai

        options: dict[str, Any] = {}
        if self.temperature is not None:
            options["temperature"] = self.temperature
        messages: Any = dialogue
        try:
            answer = await client.chat.completions.create(
                model=self.model,
                messages=messages,
                max_completion_tokens=self.max_tokens,
                seed=seed % 2**31,
                **options,
            )
        except openai.APIStatusError as error:
            told, status = self._told(error), error.status_code
            if status in OWN_FAULT:
                raise RunEndingError(f"{self.url} refuses: {told}") from None
            if status in PASSING or status >= 500:
                after = error.response.headers.get("retry-after", "")
                seconds = float(after) if after.isdecimal() else 0.0
                raise PassingError(told, after_s=seconds) from None
            raise InfrastructureError(f"{self.url}: {told}") from None
        except (openai.APIError, ValueError) as error:  # no connection, or no JSON
            raise PassingError(self._told(error)) from None
        return self._read(answer)

    def _read(self, answer: Any) -> str:
        """Raises PassingError for what is no answer, InfrastructureError for a cut one."""
        try:
            [choice] = answer.choices
            text, finish = choice.message.content, choice.finish_reason
        except (AttributeError, TypeError, ValueError):
            raise PassingError(f"an answer without one choice: {str(answer)[:200]}") from None
        if finish == "length":
            raise InfrastructureError(f"{self.url}: a reply is longer than {self.max_tokens} ids")
        if not isinstance(text, str) or not (said := visible(text)):
            raise PassingError("an answer without a word beside its thinking")
        return said

    def _connected(self) -> openai.AsyncOpenAI:
        """Connections and slots belong to an event loop; a new loop gets new ones."""
        import openai

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = openai.AsyncOpenAI(
                api_key=self.key or "none", base_url=self.url, max_retries=0, timeout=self.request_s
            )
            self._loop, self._slots = loop, asyncio.Semaphore(self.concurrency)
        return self._client

    def _told(self, error: Exception) -> str:
        """In words, without the key, which a server may repeat in what it answers."""
        told = f"{type(error).__name__}: {error}"
        return (told.replace(self.key, "(key)") if self.key else told)[:300]
