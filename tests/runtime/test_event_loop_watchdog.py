"""Who holds the event loop, or waits in a circle, is named."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from rolecall import Lock, Semaphore
from rolecall.agents.agent import Policy
from rolecall.core.errors import RunEndingError
from rolecall.engines.local.engine import LocalEngine
from rolecall.rollout.group_player import collect
from rolecall.runtime import call_tree, event_loop_watchdog
from rolecall.runtime.call_tree import IdleBarrier, task_factory
from rolecall.workflows.base import workflow
from tests.rollout.test_rollout import context, run, tasks
from tests.toy import agent, language_model

pytestmark = pytest.mark.slow


def computes(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_who_holds_the_loop_is_named_once_with_the_line(caplog, monkeypatch):
    monkeypatch.setattr(event_loop_watchdog, "LONGEST_S", 0.15)
    monkeypatch.setattr(event_loop_watchdog, "EVERY_S", 0.02)

    async def main() -> None:
        with event_loop_watchdog.watch_loop():
            for _ in range(2):
                # As a callback: `main` goes on only when the loop is known to be free again.
                asyncio.get_running_loop().call_soon(computes, 0.5)
                await asyncio.sleep(0.05)
            await asyncio.to_thread(computes, 0.3)

    with caplog.at_level(logging.WARNING, "rolecall.notices"):
        asyncio.run(main())
    told = [r.getMessage() for r in caplog.records]
    assert told
    assert len({message.partition(" has held")[0] for message in told}) == len(told)
    assert all("test_event_loop_watchdog.py:" in message for message in told)
    assert all("in computes" in message for message in told)


def test_whoever_only_started_the_loop_does_not_hold_it(caplog, monkeypatch):
    """A script or a notebook's cell that calls `rolecall.train` waits for the whole run."""
    monkeypatch.setattr(event_loop_watchdog, "LONGEST_S", 0.15)
    monkeypatch.setattr(event_loop_watchdog, "EVERY_S", 0.02)

    async def main() -> None:
        with event_loop_watchdog.watch_loop():
            asyncio.get_running_loop().call_soon(time.sleep, 0.5)  # nobody's line
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING, "rolecall.notices"):
        asyncio.run(main())
    assert not caplog.records


def locked_stage(folder, lock):
    """Episodes that take a lock of all around a call, on an engine that waits for everybody."""

    @workflow
    async def one_at_a_time(team, task, world):
        async with lock():
            return await team.solver(task.prompt)

    made = context(folder, flow=one_at_a_time)
    barrier = IdleBarrier()
    model = language_model(folder)
    engine = LocalEngine({"p": model}, barrier=barrier, cache_gb=0.01)
    made.agents = {"solver": agent("solver", Policy("p", model.tokenizer, engine))}
    made.barrier = barrier
    return made


@pytest.mark.parametrize("kind", [Lock, lambda: Semaphore(2)])
def test_locks_that_say_that_they_wait_do_not_stop_a_deterministic_engine(model_folder, kind):
    async def main():
        one = kind()
        made = locked_stage(model_folder, lambda: one)
        return await collect(made, tasks(3), step=1, group_size=2)

    first, second = run(main()), run(main())
    assert [e.answer for e in first.episodes] == [e.answer for e in second.episodes]
    assert len(first.episodes) == 6


def test_a_lock_that_does_not_say_so_ends_the_run_by_name_instead_of_hanging(
    model_folder, monkeypatch
):
    monkeypatch.setattr(call_tree, "STILL_S", 0.2)

    async def main():
        one = asyncio.Lock()
        await collect(locked_stage(model_folder, lambda: one), tasks(2), step=1, group_size=2)

    locked_at = r"test_event_loop_watchdog.py:\d+ in one_at_a_time.*Lock"
    with pytest.raises(RunEndingError, match=locked_at):
        run(main())


def test_whoever_waits_for_the_world_is_in_no_circle(monkeypatch):
    """A slow tool is waited for, however long, though it waits for an event of its own library."""
    monkeypatch.setattr(call_tree, "STILL_S", 0.05)

    async def main() -> bool:
        asyncio.get_running_loop().set_task_factory(task_factory)
        barrier = IdleBarrier()

        async def slow() -> None:
            with call_tree.enter_scope((), barrier=barrier):
                await asyncio.sleep(0.3)

        working = asyncio.create_task(slow())
        await asyncio.sleep(0)
        assert barrier.running == 1
        await barrier.wait()
        return working.done()

    assert asyncio.run(main())
