"""One policy for all servers: when a request is tried again, how long after, and until when."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from random import Random

import pytest

from rolecall.core.errors import InfrastructureError
from rolecall.runtime import call_tree
from rolecall.runtime.retrying import (
    PASSING,
    GaveUpError,
    RefusedError,
    RetryableError,
    Retrying,
    RetryLimits,
    UnreachableError,
    describe_error,
    failure,
    retry_after_s,
    within,
)
from rolecall.runtime.secret_texts import remember_secret

pytestmark = pytest.mark.slow


class Script:
    """A request that does what stands next in a list, and then the last of it again."""

    def __init__(self, *outcomes):
        self.outcomes, self.times = outcomes, []

    async def __call__(self):
        self.times.append(time.monotonic())
        outcome = self.outcomes[min(len(self.times), len(self.outcomes)) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, float):
            await asyncio.sleep(outcome)
        return outcome

    @property
    def gaps(self):
        return [late - early for early, late in zip(self.times, self.times[1:], strict=False)]


def call(script, *, seed=0, **limits):
    """-> (what the call came to, seconds that it took)"""
    retrying = Retrying(RetryLimits(**{"deadline_s": 10.0, "pause_s": 0.01} | limits), seed=seed)
    began = time.monotonic()
    return asyncio.run(retrying.call(script)), time.monotonic() - began


def gives_up(script, **limits):
    """-> (the error, seconds that the call took)"""
    began = time.monotonic()
    with pytest.raises(GaveUpError) as raised:
        call(script, **limits)
    return raised.value, time.monotonic() - began


def test_a_request_is_tried_until_it_succeeds():
    script = Script(RetryableError("busy"), UnreachableError("away"), "answer")
    assert call(script)[0] == "answer"
    assert len(script.times) == 3


def test_pauses_double_up_to_the_longest_with_the_jitter_of_a_seed():
    limits = RetryLimits(deadline_s=10.0, pause_s=0.5, longest_pause_s=1.5)
    drawn = [limits.pause_after(failures, Random(7)) for failures in (1, 2, 3, 4, 5000)]
    jitter = Random(7).uniform(0.5, 1.5)
    assert drawn == [pytest.approx(jitter * pause) for pause in (0.5, 1.0, 1.5, 1.5, 1.5)]
    assert len({limits.pause_after(1, Random(seed)) for seed in range(9)}) == 9


def test_a_call_makes_the_pauses_of_its_seed():
    expected, random = RetryLimits(deadline_s=10.0, pause_s=0.04), Random(3)
    for _ in range(2):
        script = Script(*[RetryableError("busy")] * 3, "answer")
        call(script, seed=3, pause_s=0.04)
        random.seed(3)
        pauses = [expected.pause_after(failures, random) for failures in (1, 2, 3)]
        for gap, pause in zip(script.gaps, pauses, strict=True):
            assert pause <= gap < pause + 0.2


def test_the_deadline_ends_all_tries_and_tells_what_the_newest_met():
    script = Script(RetryableError("busy"), RetryableError("still busy"))
    error, took_s = gives_up(script, deadline_s=1.5, pause_s=0.1)
    assert str(error) == "no result within 1.5 s; last: still busy"
    assert (error.limit, error.last) == ("1.5 s", "still busy")
    assert isinstance(error, InfrastructureError)
    assert 1.3 < took_s < 3.0
    assert 4 <= len(script.times) <= 8, "pauses grow between tries"


def test_a_pause_that_reaches_beyond_the_deadline_leaves_time_for_a_last_try():
    script = Script(RetryableError("busy"))
    _, took_s = gives_up(script, deadline_s=1.0, pause_s=60.0, longest_pause_s=60.0)
    assert took_s < 3.0
    [gap] = script.gaps
    assert 0.85 < gap < 1.0


def test_a_try_that_hangs_ends_by_its_own_limit_and_the_call_by_the_deadline():
    script = Script(20.0, "answer")
    found, took_s = call(script, request_s=0.1)
    assert (found, len(script.times)) == ("answer", 2)
    assert took_s < 2.0
    error, took_s = gives_up(Script(20.0), request_s=0.1, deadline_s=0.5)
    assert error.last == "no answer within 0.1 s"
    assert took_s < 2.0
    error, took_s = gives_up(Script(20.0), deadline_s=0.3)
    assert (error.limit, error.last) == ("0.3 s", "no answer came")
    assert took_s < 2.0


def test_attempts_count_the_tries_that_reach_nobody_and_no_others():
    busy, away = RetryableError("busy"), UnreachableError("away")
    script = Script(busy, busy, away, busy, away, "answer")
    error, _ = gives_up(script, attempts=2, pause_s=0.001)
    assert (error.limit, error.last, len(script.times)) == ("2 tries", "away", 5)


def test_a_server_is_left_alone_for_as_long_as_it_asks():
    script = Script(RetryableError("busy", after_s=0.3), "answer")
    call(script, pause_s=0.001)
    assert 0.3 <= script.gaps[0] < 0.6


def test_those_who_were_told_the_same_time_do_not_come_back_at_one_moment():
    gaps = []
    for seed in range(4):
        script = Script(RetryableError("busy", after_s=0.05), "answer")
        call(script, seed=seed, pause_s=0.4)
        gaps += script.gaps
    assert min(gaps) >= 0.05
    assert max(gaps) - min(gaps) > 0.1


def test_a_server_that_asks_for_more_than_is_left_ends_the_call_at_once():
    script = Script(RetryableError("busy", after_s=60.0))
    error, took_s = gives_up(script, deadline_s=5.0)
    assert (error.last, len(script.times)) == ("busy", 1)
    assert took_s < 1.0


def test_a_try_that_needs_no_pause_gets_none_and_lengthens_no_later_one():
    at_once = RetryableError("unreadable", at_once=True)
    script = Script(*[at_once] * 20, RetryableError("busy"), "answer")
    _, took_s = call(script, pause_s=0.05)
    assert took_s < 1.0
    assert script.gaps[-1] < 0.3


@pytest.mark.parametrize(
    "error", [RefusedError("HTTP 400: no", status=400), ValueError("no"), OSError("no")]
)
def test_any_other_error_ends_the_call_at_once(error):
    script = Script(error, "answer")
    with pytest.raises(type(error), match="no"):
        call(script)
    assert len(script.times) == 1


def test_no_more_calls_are_under_way_than_allowed_in_each_of_several_event_loops():
    retrying = Retrying(RetryLimits(deadline_s=1.0, concurrency=2))
    under_way, most = [0], [0]

    async def request():
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        await asyncio.sleep(0.3)
        under_way[0] -= 1
        return "answer"

    async def several():
        return await asyncio.gather(*(retrying.call(request) for _ in range(8)))

    for _ in range(2):  # a call that waits longer than its deadline for its turn is none the worse
        assert asyncio.run(several()) == ["answer"] * 8
    assert most[0] == 2


def test_what_a_request_starts_numbers_no_calls_of_the_episode_that_makes_it():
    async def request():
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))  # as connecting does
        return "answer"

    async def main():
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        barrier = call_tree.IdleBarrier()
        with call_tree.enter_scope((), barrier=barrier) as scope:
            await Retrying(RetryLimits(deadline_s=1.0)).call(request)
            return scope.next_path()

    assert asyncio.run(main()) == (0,)


def test_a_call_that_is_given_up_ends_its_request():
    ended = []

    async def request():
        try:
            await asyncio.sleep(20)
        finally:
            ended.append("request")

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Retrying(RetryLimits(deadline_s=10.0)).call(request)

    asyncio.run(main())
    assert ended == ["request"]


def test_a_timeout_of_the_requests_own_counts_as_no_answer():
    async def main():
        async with within(None):
            raise TimeoutError("the lock was held")

    with pytest.raises(UnreachableError, match="TimeoutError: the lock was held"):
        asyncio.run(main())


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529, 599])
def test_a_status_that_may_pass_asks_for_another_try(status):
    found = failure(status, "told", headers={"retry-after": "7"})
    assert isinstance(found, RetryableError)
    assert (str(found), found.after_s) == ("told", 7.0)
    assert isinstance(failure(status, "told", headers={}, passing=()), RefusedError)


@pytest.mark.parametrize("status", [201, 301, 400, 401, 403, 404, 413, 422, 600])
def test_any_other_status_is_a_refusal(status):
    found = failure(status, "told", headers={"retry-after": "7"})
    assert isinstance(found, RefusedError)
    assert (str(found), found.status) == ("told", status)
    assert status not in PASSING


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0), ("12", 12.0), (" 0.5 ", 0.5), ("", None), ("nan", None), ("-3", None),
        ("soon", None), ("inf", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after_is_read_as_a_number_or_a_date(value, seconds):
    assert retry_after_s({"retry-after": value}) == seconds
    assert retry_after_s({}) is None


def test_a_date_to_come_is_as_far_away_as_it_is():
    date = formatdate(time.time() + 100, usegmt=True)
    assert retry_after_s({"retry-after": date}) == pytest.approx(100, abs=2)


def test_an_error_is_told_with_its_type_without_the_secret_and_not_at_any_length():
    remember_secret("sk-0123456789")
    assert describe_error(OSError("key sk-0123456789 is bad")) == "OSError: key (key) is bad"
    assert describe_error(TimeoutError()) == "TimeoutError"
    assert len(describe_error(ValueError("x" * 10_000))) == 300


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"deadline_s": 0.0}, "deadline_s is 0: write a number of seconds above 0"),
        ({"request_s": -1.0}, "request_s is -1"),
        ({"pause_s": float("nan")}, "pause_s is nan"),
        ({"longest_pause_s": 0.0}, "longest_pause_s is 0"),
        ({"attempts": 0}, "attempts is 0: it must be at least 1"),
        ({"concurrency": 0}, "concurrency is 0: it must be at least 1"),
    ],
)
def test_limits_that_allow_no_try_are_errors(limits, told):
    with pytest.raises(ValueError, match=told):
        RetryLimits(**{"deadline_s": 1.0} | limits)
