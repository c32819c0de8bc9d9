"""A question goes in, a verdict comes out, or a CoachError that says why there is none.

The only place that catches what an SDK raises. What may pass by itself (429, 5xx, a broken
connection, no answer in time, an answer that is no answer) is asked again until the deadline.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from rolecall.rewards.coach.providers import Provider, Reply
from rolecall.rewards.coach.rendering import Prompt
from rolecall.rewards.coach.scores import (
    CoachConfigError,
    CoachError,
    FormatError,
    Verdict,
)

OWN_FAULT = {400, 401, 403, 404}  # the same request can never succeed
TOO_LONG = re.compile(r"context.length|too long|too many tokens|maximum number of tokens", re.I)
PASSING = {408, 409, 425, 429}
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a coach is waited for."""

    deadline_s: float = 120.0
    """For one score in all: requests, pauses, repeats."""
    request_s: float = 60.0
    """For one request."""
    format_retries: int = 2
    """New requests after an answer without a readable score."""
    pause_s: float = 1.0
    """Before the first repeat of a failed request, doubled for each later one."""

    def __post_init__(self) -> None:
        if min(self.deadline_s, self.request_s, self.pause_s) <= 0 or self.format_retries < 0:
            raise ValueError(f"a coach needs times above 0 and no negative count, got {self}")


async def ask(
    provider: Provider,
    patience: Patience,
    *,
    compose: Callable[[bool], tuple[Prompt, Callable[[str], Verdict]]],
    before: Callable[[], None],
    after: Callable[[Reply], None],
) -> tuple[Verdict, str]:
    """-> (the verdict, the answer as it came).

    compose: whether an answer was unreadable before -> the question and what reads its answer.
    before: called ahead of each request; may raise. after: called with each answer, for its cost.
    Raises CoachConfigError where no request can succeed, CoachError where this one did not.
    """
    deadline = time.monotonic() + patience.deadline_s
    num_unreadable, pause = 0, patience.pause_s
    while True:
        before()
        prompt, read = compose(num_unreadable > 0)
        left = deadline - time.monotonic()
        try:
            async with asyncio.timeout(min(left, patience.request_s)):
                reply = await provider.ask(prompt)
        except CoachConfigError:
            raise
        except Exception as error:  # the boundary to an SDK
            reason = _told(error, provider.access.key)
            wait = _pause(error, pause, reason)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        else:
            after(reply)
            try:
                if reply.truncated:  # "PROCESS_SCORE: 1" may be the start of 10
                    raise FormatError("the length limit ended it")
                return read(reply.text), reply.text
            except FormatError as error:
                num_unreadable += 1
                reason, wait = f"unreadable answer: {error}", 0.0
                if num_unreadable > patience.format_retries:
                    told = f"no readable score in {num_unreadable} answers; last: {error}"
                    raise CoachError(told) from None
        if time.monotonic() + wait >= deadline:
            raise CoachError(f"no score within {patience.deadline_s:g} s; last: {reason}")
        await asyncio.sleep(wait)


def _pause(error: Exception, pause: float, reason: str) -> float:
    """Seconds until the next request. Raises CoachError if there should be none."""
    status = _status(error)
    if status == 400 and TOO_LONG.search(reason):  # this action's own
        raise CoachError(reason) from None
    if status in OWN_FAULT:
        raise CoachConfigError(f"the coach's provider refuses: {reason}") from None
    if status is not None and status not in PASSING and status < 500:
        raise CoachError(reason) from None
    asked = _retry_after(error)
    return pause * random.uniform(0.5, 1.5) if asked is None else asked + random.uniform(0, pause)


def _status(error: Exception) -> int | None:
    """The HTTP status, which SDKs call status_code or code."""
    for name in ("status_code", "code"):
        found = getattr(error, name, None)
        if isinstance(found, int):
            return found
    return None


def _retry_after(error: Exception) -> float | None:
    """Seconds that the provider asks for, as a number or as a date."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after") or ""
    if re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _told(error: Exception, key: str | None) -> str:
    """In words, without the key, which a server may repeat in what it answers."""
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return (told.replace(key, "(key)") if key else told)[:300]
