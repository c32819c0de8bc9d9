"""Asks a coach for a verdict, or raises a CoachError that says why there is none.

The only place that catches what an SDK raises. When a failed request is made again is decided by
`retrying`, as for all servers; an answer that cannot be read is asked for again, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rolecall.rewards.coach.providers import Provider, Reply
from rolecall.rewards.coach.rendering import Prompt
from rolecall.rewards.coach.scores import (
    CoachConfigError,
    CoachError,
    FormatError,
    Verdict,
)
from rolecall.runtime.retrying import (
    GaveUpError,
    RefusedError,
    RetryableError,
    Retrying,
    describe_error,
    failure,
)

OWN_FAULT = {400, 401, 403, 404}  # the same request can never succeed
TOO_LONG = re.compile(r"context.length|too long|too many tokens|maximum number of tokens", re.I)


async def ask(
    provider: Provider,
    retrying: Retrying,
    *,
    format_retries: int,
    compose: Callable[[bool], tuple[Prompt, Callable[[str], Verdict]]],
    before: Callable[[], None],
    after: Callable[[Reply], None],
) -> tuple[Verdict, str]:
    """-> (the verdict, the answer as it came).

    format_retries: new requests after an answer without a readable score.
    compose: whether an answer was unreadable before -> the question and what reads its answer.
    before: called ahead of each request; may raise. after: called with each answer, for its cost.
    Raises CoachConfigError where no request can succeed, CoachError where this one did not.
    """
    num_unreadable = 0

    async def once() -> tuple[Verdict, str]:
        nonlocal num_unreadable
        before()
        prompt, read = compose(num_unreadable > 0)
        reply = await _request(provider, prompt)
        after(reply)
        try:
            if reply.truncated:  # "PROCESS_SCORE: 1" may be the start of 10
                raise FormatError("the length limit ended it")
            return read(reply.text), reply.text
        except FormatError as error:
            num_unreadable += 1
            if num_unreadable > format_retries:
                message = f"no readable score in {num_unreadable} answers; last: {error}"
                raise CoachError(message) from None
            raise RetryableError(f"unreadable answer: {error}", at_once=True) from None

    try:
        return await retrying.call(once)
    except GaveUpError as error:
        raise CoachError(f"no score within {error.limit}; last: {error.last}") from None


async def _request(provider: Provider, prompt: Prompt) -> Reply:
    """Raises RetryableError, CoachError or CoachConfigError for whatever the SDK raises."""
    try:
        return await provider.ask(prompt)
    except CoachConfigError:
        raise
    except Exception as error:  # the boundary to an SDK
        raise _meaning(error, describe_error(error)) from None


def _meaning(error: Exception, told: str) -> Exception:
    """Return the meaning of an SDK's error; without a status there was no connection, or no answer
    in it.
    """
    status = _status(error)
    if status is None:
        return RetryableError(told)
    if status == 400 and TOO_LONG.search(told):  # this action's own
        return CoachError(told)
    if status in OWN_FAULT:
        return CoachConfigError(f"the coach's provider refuses: {told}")
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    meaning = failure(status, told, headers=headers)
    return CoachError(told) if isinstance(meaning, RefusedError) else meaning


def _status(error: Exception) -> int | None:
    """Return the HTTP status, which SDKs call status_code or code."""
    for name in ("status_code", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int):
            return status
    return None
