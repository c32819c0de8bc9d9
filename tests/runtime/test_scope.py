"""Paths come from the code, never from latency; quiet means that everyone waits."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref

import pytest

from rolecall.runtime import call_tree


async def _calls(delays: list[float]) -> dict[str, tuple[int, ...]]:
    asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
    barrier, seen = call_tree.IdleBarrier(), {}

    async def call(name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        seen[name] = call_tree.current().next_path()

    async def pair(name: str, delay: float) -> None:
        await asyncio.gather(call(f"{name}0", delay), call(f"{name}1", 0.0))

    with call_tree.enter_scope((), barrier=barrier):
        await call("first", 0.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(pair("a", delays[0]))
            group.create_task(call("b", delays[1]))
        await call("end", delays[2])
    assert barrier.running == 0
    return seen


def test_paths_follow_the_order_of_the_code_whatever_the_delays():
    expected = {
        "first": (0,),
        "a0": (1, 0, 0),
        "a1": (1, 1, 0),
        "b": (2, 0),
        "end": (3,),
    }
    for seed in range(5):
        delays = [random.Random(seed).random() * 0.02 for _ in range(3)]
        assert asyncio.run(_calls(delays)) == expected


def test_quiet_is_reached_only_when_every_live_coroutine_waits():
    async def main() -> list[str]:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        barrier, events = call_tree.IdleBarrier(), []
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def waits() -> None:
            with call_tree.waiting():
                await gate

        async def works_then_waits() -> None:
            await asyncio.sleep(0.02)
            events.append("worked")
            await waits()

        async def episode() -> None:
            with call_tree.enter_scope((), barrier=barrier):
                await asyncio.gather(waits(), works_then_waits())
                events.append("over")

        running = asyncio.create_task(episode())
        await asyncio.sleep(0)
        await barrier.wait()
        events.append("quiet")
        gate.set_result(None)
        await running
        assert barrier.running == 0
        return events

    assert asyncio.run(main()) == ["worked", "quiet", "over"]


def test_tasks_started_outside_of_an_episode_have_no_scope():
    async def main() -> bool:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        return await asyncio.create_task(_has_scope())

    async def _has_scope() -> bool:
        try:
            call_tree.current()
        except AssertionError:
            return False
        return True

    assert asyncio.run(main()) is False


def test_a_task_that_outlives_its_parent_is_counted_until_it_ends():
    async def main() -> tuple[int, int]:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        barrier = call_tree.IdleBarrier()
        with call_tree.enter_scope((), barrier=barrier):
            stray = asyncio.create_task(asyncio.sleep(0.01))
        during = barrier.running
        await stray
        await asyncio.sleep(0)
        return during, barrier.running

    assert asyncio.run(main()) == (1, 0)


def test_a_cancelled_episode_leaves_nothing_running():
    async def main() -> int:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        barrier = call_tree.IdleBarrier()

        async def episode() -> None:
            with call_tree.enter_scope((), barrier=barrier):
                await asyncio.gather(asyncio.sleep(5), asyncio.sleep(5))

        running = asyncio.create_task(episode())
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return barrier.running

    assert asyncio.run(main()) == 0


def test_work_outside_of_an_episode_has_no_path_and_the_barrier_does_not_wait_for_it():
    async def main() -> tuple[tuple[int, ...], bool, list[str]]:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        barrier, events = call_tree.IdleBarrier(), []
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def shared() -> None:
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))  # tasks of a library
            await answered
            events.append("shared work ended")

        async def episode() -> tuple[int, ...]:
            with call_tree.enter_scope((), barrier=barrier):
                call_tree.outside(shared())
                await asyncio.sleep(0.01)
                return call_tree.current().next_path()

        path = await asyncio.create_task(episode())
        await asyncio.wait_for(barrier.wait(), 1.0)
        waited = bool(events)
        answered.set_result(None)
        await asyncio.sleep(0.01)
        return path, waited, events

    assert asyncio.run(main()) == ((0,), False, ["shared work ended"])


def test_who_awaits_work_outside_of_an_episode_still_counts_as_running():
    async def main() -> tuple[int, str, int]:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        barrier = call_tree.IdleBarrier()

        async def shared() -> str:
            await asyncio.sleep(0.02)
            return "answer"

        async def episode() -> str:
            with call_tree.enter_scope((), barrier=barrier):
                return await call_tree.outside(shared())

        running = asyncio.create_task(episode())
        await asyncio.sleep(0.01)
        return barrier.running, await running, barrier.running

    assert asyncio.run(main()) == (1, "answer", 0)


def test_an_error_of_work_outside_is_raised_where_it_is_awaited_and_else_logged(caplog):
    async def fails(told: str) -> None:
        raise OSError(told)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
        with pytest.raises(OSError, match="the disk is full"):
            await call_tree.outside(fails("the disk is full"))
        call_tree.outside(fails("nobody waits for this"))
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(main())
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["nobody waits for this"]


def test_work_outside_that_nobody_holds_is_not_thrown_away():
    async def main() -> list[str]:
        done: list[str] = []

        async def waits_for_itself() -> None:
            # Only the task refers to this future, and only the future to the task.
            gate = asyncio.get_running_loop().create_future()
            reference = weakref.ref(gate)
            asyncio.get_running_loop().call_later(0.02, lambda: _open(reference))
            await gate
            done.append("ended")

        def _open(reference: weakref.ref[asyncio.Future[None]]) -> None:
            if (gate := reference()) is not None:
                gate.set_result(None)

        call_tree.outside(waits_for_itself())
        await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0.03)
        return done

    assert asyncio.run(main()) == ["ended"]
