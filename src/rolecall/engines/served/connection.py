"""Asks a model server, and says in one line what is wrong where it gives no answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from rolecall.config.served import ServedEngineConfig
from rolecall.core.async_types import Work
from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.interfaces.engine import ContextFullError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.runtime import call_tree
from rolecall.runtime.http import Http
from rolecall.runtime.retrying import (
    GaveUpError,
    RefusedError,
    RetryableError,
    Retrying,
    RetryLimits,
)
from rolecall.runtime.secret_texts import excerpt, remember_secret, scrub

Content = TypeVar("Content")
Result = TypeVar("Result")

MOST_BYTES = 256 * 2**20  # of an answer; log-probs of a long one are some megabytes
LONGEST_PAUSE_S = 30.0
CHECK_S = 10.0  # until an answer to `check` must have come
NO_KEY, NO_MONEY, UNKNOWN = (401, 403), (402,), (404,)  # what no other request would change
WRONG = (400, 422)  # this request; the first one may show that all are
TOO_LARGE = (413,)
QUOTA = re.compile(r"insufficient_quota", re.I)
TOO_LONG = re.compile(
    r"context.?(length|size|window)|maximum (prompt|input) length|prompt is too long|"
    r"too many tokens|input length|reduce the length|maximum number of tokens",
    re.I,
)
DECLINED = re.compile(r"content.?(filter|policy|management)|safety", re.I)


class ServerError(RunEndingError):
    """The server refuses every request: a wrong key, model or address, or no money left."""

    def __init__(self, told: str, *, status: int | None = None) -> None:
        super().__init__(told)
        self.status = status


class MalformedError(ValueError):
    """An answer that is not what the interface promises."""


class DeclinedError(InfrastructureError):
    """A filter of the provider did not let the prompt pass."""


class Server:
    """One server: how many requests at once, when one is made again, and what a refusal means."""

    def __init__(
        self,
        options: ServedEngineConfig,
        *,
        key: str | None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is called ahead of each try, and may raise what ends the call."""
        self.address = options.url or options.name
        self._key, self._before = key, before
        if key is not None:
            remember_secret(key)  # which a server may repeat in what it answers
        self._retrying = Retrying(
            RetryLimits(
                deadline_s=options.timeout_s,
                request_s=options.request_s,
                pause_s=options.pause_s,
                longest_pause_s=max(LONGEST_PAUSE_S, options.pause_s),
                concurrency=options.concurrency,
            )
        )
        self._asked: dict[str, list[asyncio.Future[Any]]] = {}  # by request
        self._has_answered = False

    async def call(
        self,
        request: Callable[[], Awaitable[Content]],
        read: Callable[[Content], Result],
        *,
        deadline_s: float | None = None,
    ) -> Result:
        """Return what `read` makes of the content that a request brings.

        `request` raises RetryableError or RefusedError. `read` raises MalformedError for what it
        cannot read, which is asked for again. Raises ContextFullError, DeclinedError, ServerError,
        and InfrastructureError for all other ends.
        """

        async def once() -> Result:
            self._before()
            try:
                result = read(await request())
            except MalformedError as error:
                raise RetryableError(f"unreadable answer: {error}") from None
            except RetryableError as error:
                if QUOTA.search(str(error)):
                    raise ServerError(self._told("has no quota left", error)) from None
                raise
            self._has_answered = True
            return result

        try:
            return await self._retrying.call(once, deadline_s=deadline_s)
        except GaveUpError as error:
            raise InfrastructureError(self._told("gave no answer", error)) from None
        except RefusedError as error:
            self._refuse(error)

    async def gather_calls(self, request_id: str, calls: list[Work[Result]]) -> list[Result]:
        """Return the results of one request's calls; where one fails, the others are not made."""
        with call_tree.waiting():
            tasks = [call_tree.outside(call) for call in calls]
            self._asked[request_id] = [*tasks]
            try:
                return [await task for task in tasks]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._asked.pop(request_id, None)

    def cancel(self, request_id: str) -> None:
        """Hang up; unknown ids are ignored."""
        for task in self._asked.pop(request_id, []):
            task.cancel()

    def _refuse(self, error: RefusedError) -> NoReturn:
        """Raise what a refusal means: for this request, or for all of them."""
        text = str(error)
        if error.status in NO_KEY:
            why = "takes no request without a key" if self._key is None else "refuses the key"
            raise ServerError(self._told(why, error), status=error.status) from None
        if error.status in NO_MONEY:
            raise ServerError(self._told("wants to be paid", error), status=402) from None
        if error.status in UNKNOWN:
            text = self._told("knows no such model or path", error)
            raise ServerError(text, status=404) from None
        if error.status in TOO_LARGE or (error.status in WRONG and TOO_LONG.search(text)):
            raise ContextFullError(self._told("has no room for the prompt", error)) from None
        if error.status in WRONG and DECLINED.search(text):
            raise DeclinedError(self._told("declined", error)) from None
        kind = InfrastructureError if self._has_answered else ServerError
        raise kind(self._told("refuses the request", error)) from None

    def _told(self, what: str, error: Exception) -> str:
        """Return an error in one line, without the key, which a server may repeat in its answer."""
        text = " ".join(scrub(str(error)).split())
        return f"the server at {self.address} {what}: {text}"


class Connection(Server):
    """A server that is sent JSON over HTTP."""

    def __init__(
        self,
        options: ServedEngineConfig,
        *,
        key: str | None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(options, key=key, before=before)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.url, self._http = options.url, Http(extra="served", headers=headers)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        read: Callable[[JsonValue], Result],
        body: JsonObject | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """Return what `read` makes of the JSON that comes, as `call` does."""
        return await self.call(
            lambda: self.send(method, path, body),
            lambda content: read(parse(content)),
            deadline_s=deadline_s,
        )

    async def tell(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Send a request whose answer nobody reads."""
        await self.call(
            lambda: self.send(method, path, body), lambda _: None, deadline_s=deadline_s
        )

    async def send(self, method: str, path: str, body: JsonObject | None) -> bytes:
        """Make one try."""
        return await self._http.ask(method, f"{self.url}{path}", most_bytes=MOST_BYTES, body=body)

    async def close(self) -> None:
        await self._http.close()


def parse(content: bytes) -> JsonValue:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"no JSON: {excerpt(content, 80)!r}") from error


def dig(value: Any, *steps: str | int) -> Any:
    """Return what stands at a path of keys, attributes and indices; None where one is missing."""
    for step in steps:
        try:
            inside = isinstance(value, dict) or isinstance(step, int)
            value = value[step] if inside else getattr(value, str(step))
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
    return value


def read_text(value: Any, *steps: str | int) -> str:
    text = dig(value, *steps)
    return text if isinstance(text, str) else ""


def read_count(value: Any, *steps: str | int) -> int:
    count = dig(value, *steps)
    return max(count, 0) if isinstance(count, int) else 0
