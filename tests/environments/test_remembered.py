"""Equal work is done once; what fails or is given up is no memory."""

import asyncio

import pytest

from rolecall.environments.code.environment import Remembered


def counted(results):
    """Work that says how often it was done."""
    done = []

    async def work():
        done.append(1)
        await asyncio.sleep(0.01)
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    return work, done


def test_equal_work_is_done_once_also_at_the_same_time():
    work, done = counted([7, 8])

    async def go():
        remembered = Remembered()
        at_once = await asyncio.gather(*(remembered.get("a", work) for _ in range(5)))
        return [*at_once, await remembered.get("a", work), await remembered.get("b", work)]

    assert asyncio.run(go()) == [7] * 6 + [8]
    assert len(done) == 2


def test_a_memory_outlives_its_event_loop():
    work, done = counted([7])
    remembered = Remembered()
    assert [asyncio.run(remembered.get("a", work)) for _ in range(2)] == [7, 7]
    assert len(done) == 1


def test_a_failure_is_told_to_all_who_wait_and_not_remembered():
    work, done = counted([RuntimeError("no sandbox"), 9])

    async def go():
        remembered = Remembered()
        waiting = [asyncio.create_task(remembered.get("a", work)) for _ in range(2)]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        return told, await remembered.get("a", work)

    told, later = asyncio.run(go())
    assert [str(error) for error in told] == ["no sandbox"] * 2
    assert later == 9
    assert len(done) == 2


def test_who_gives_up_takes_nothing_from_the_others():
    work, done = counted([7])

    async def go():
        remembered = Remembered()
        impatient = asyncio.create_task(remembered.get("a", work))
        patient = asyncio.create_task(remembered.get("a", work))
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        return await patient

    assert asyncio.run(go()) == 7
    assert len(done) == 1


def test_the_oldest_memory_goes_first(monkeypatch):
    monkeypatch.setattr("rolecall.environments.code.environment.MOST", 2)
    work, _ = counted([1, 2, 3, 4])

    async def go():
        remembered = Remembered()
        for key in "abc":
            await remembered.get(key, work)
        return await remembered.get("c", work), await remembered.get("a", work)

    assert asyncio.run(go()) == (3, 4)
