"""Makes requests to servers again, with growing pauses, until one deadline.

Consumes calls, produces their results, and is unblocked by a try that succeeds, by the end of a
pause after one that failed, or by the deadline.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from random import Random
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type

from rolecall.core.errors import InfrastructureError
from rolecall.runtime.call_tree import outside
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.secret_texts import excerpt

Result = TypeVar("Result")

# Statuses that another try may change; 409 is what providers answer while they hold a lock.
PASSING = frozenset({408, 409, 425, 429, *range(500, 600)})
LAST_SHARE = 0.1  # of the deadline, in which no further try begins
MOST_TOLD = 300  # characters of what a failure says


class RetryableError(Exception):
    """A try failed, and another one may not."""

    def __init__(self, told: str, *, after_s: float | None = None, at_once: bool = False) -> None:
        """`after_s`: for how long the server asks to be left alone; None: it does not say.
        `at_once`: the next try needs no pause.
        """
        super().__init__(told)
        self.after_s, self.at_once = after_s, at_once


class UnreachableError(RetryableError):
    """A try brought no answer at all: no connection, or nothing in time."""


class RefusedError(InfrastructureError):
    """A server's answer that is no result, and would be the same for another try."""

    def __init__(self, told: str, *, status: int) -> None:
        super().__init__(told)
        self.status = status


class GaveUpError(InfrastructureError):
    """No try succeeded."""

    def __init__(self, limit: str, *, last: str) -> None:
        """`limit`: what ended the call, "30 s" or "4 tries"; `last`: what the newest try met."""
        super().__init__(f"no result within {limit}; last: {last}")
        self.limit, self.last = limit, last


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Limits on how long and how often a call is tried."""

    deadline_s: float
    """For one call in all: tries and pauses. No try begins in the last tenth of it."""
    request_s: float | None = None
    """For one try; None: what is left of the deadline."""
    pause_s: float = 0.25
    """Before the second try, give or take a half; doubled for each later one."""
    longest_pause_s: float = 10.0
    """To which pauses grow. A server that asks for a longer one gets it."""
    attempts: int | None = None
    """Most tries that bring no answer at all; None: the deadline alone ends the call."""
    concurrency: int = 16
    """Calls under way at once in an event loop. A call that waits for its turn has no deadline."""

    def __post_init__(self) -> None:
        """Check the limits; raises ValueError for any that allows no try."""
        for name in ("deadline_s", "request_s", "pause_s", "longest_pause_s"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} is {seconds:g}: write a number of seconds above 0")
        for name in ("attempts", "concurrency"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}: it must be at least 1")

    def pause_after(self, failures: int, random: Random) -> float:
        """Seconds until the next try after so many failures in a row, with jitter."""
        grown_s = self.pause_s * 2.0 ** min(failures - 1, 60)
        return min(grown_s, self.longest_pause_s) * random.uniform(0.5, 1.5)


class Retrying:
    """The calls of one client, which share its limits; event loops do not share anything."""

    def __init__(self, limits: RetryLimits, *, seed: int | None = None) -> None:
        """`seed`: of the jitter; None: another one in each process, so that those that failed
        together do not come back together. Nothing that is trained on depends on it.
        """
        self.limits = limits
        self.random = Random(seed)
        self._slots = PerLoop(lambda: asyncio.Semaphore(limits.concurrency))

    async def call(
        self, request: Callable[[], Awaitable[Result]], *, deadline_s: float | None = None
    ) -> Result:
        """Return the result of the first try of `request` that succeeds; it runs outside of any
        episode.

        `request` raises RetryableError where another try may help; all else that it raises ends
        the call. `deadline_s`: of this call, in place of the limit. Raises GaveUpError when the
        deadline or the attempts are used up, and at once when a server asks for a longer pause
        than is left.
        """
        return await outside(self._call(request, deadline_s or self.limits.deadline_s))

    async def _call(self, request: Callable[[], Awaitable[Result]], deadline_s: float) -> Result:
        async with self._slots.get():
            tries = _Tries(self, deadline_s)
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(RetryableError),
                wait=lambda _: tries.wait_s,
                stop=lambda _: bool(tries.ended_by),
                sleep=asyncio.sleep,
                reraise=True,
            )
            try:
                async with asyncio.timeout(deadline_s):
                    result: Result = await retrying(tries.make, request)
                    return result
            except (RetryableError, TimeoutError) as error:
                limit = tries.ended_by or f"{deadline_s:g} s"
                raise GaveUpError(limit, last=tries.last) from error


class _Tries:
    """The tries of one call: what the newest met, and whether and when there is another."""

    def __init__(self, retrying: Retrying, deadline_s: float) -> None:
        self.limits, self.random = retrying.limits, retrying.random
        self.deadline = f"{deadline_s:g} s"
        self.last_start = time.monotonic() + (1.0 - LAST_SHARE) * deadline_s
        self.last = "no answer came"
        self.wait_s = 0.0  # before the next try
        self.ended_by = ""  # the limit that allows no other try
        self.unreached = self.failures = 0

    async def make(self, request: Callable[[], Awaitable[Result]]) -> Result:
        try:
            async with within(self.limits.request_s):
                return await request()
        except RetryableError as error:
            self.last = str(error)
            self._plan(error)
            raise

    def _plan(self, error: RetryableError) -> None:
        """Set `wait_s`, or `ended_by`."""
        left_s = self.last_start - time.monotonic()
        self.unreached += isinstance(error, UnreachableError)
        self.wait_s = 0.0
        if not error.at_once:
            self.failures += 1
            asked_s, own_s = error.after_s, self.limits.pause_after(self.failures, self.random)
            # The last try is made while there is time for its answer.
            self.wait_s = own_s = min(own_s, max(left_s - (asked_s or 0.0), 0.0))
            if asked_s is not None:  # not all who were told so come back at one moment
                self.wait_s = asked_s + self.random.uniform(0.0, own_s)
        if self.unreached == self.limits.attempts:
            self.ended_by = f"{self.unreached} tries"
        elif left_s <= 0.0 or self.wait_s > left_s:
            self.ended_by = self.deadline


@asynccontextmanager
async def within(seconds: float | None) -> AsyncIterator[None]:
    """Limit a try to `seconds` (None: no limit); raises UnreachableError if it takes longer."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # one of the request's own
            raise UnreachableError(describe_error(error)) from error
        raise UnreachableError(f"no answer within {seconds:g} s") from error


def failure(
    status: int, told: str, *, headers: Mapping[str, str], passing: Container[int] = PASSING
) -> RetryableError | RefusedError:
    """Return the error for an answer with this status: another try, or the end of the call."""
    if status in passing:
        return RetryableError(told, after_s=retry_after_s(headers))
    return RefusedError(told, status=status)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks for by Retry-After, as a number or as a date; None if it does not.

    `headers` find their names in lower case.
    """
    value = headers.get("retry-after") or ""
    if re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def describe_error(error: BaseException) -> str:
    """Return an error with its type, without keys, which a server may repeat in what it answers."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return excerpt(text, MOST_TOLD)
