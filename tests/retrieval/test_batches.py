"""Concurrent queries share calls; nobody waits for nobody, and nobody is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.retrieval.base import Hit
from rolecall.retrieval.client import Batches
from rolecall.runtime.call_tree import IdleBarrier, current, enter_scope, task_factory


class Calls:
    """Finds each query in one hit of its name, after `pause_s`."""

    def __init__(self, *, pause_s: float = 0.0, largest: int = 64, at_once: int = 1) -> None:
        self.made: list[tuple[list[str], int]] = []
        self.pause_s = pause_s
        self.batches = Batches(self.answer, largest=largest, at_once=at_once)

    async def answer(self, queries: list[str], topk: int) -> list[list[Hit]]:
        self.made.append((queries, topk))
        await asyncio.sleep(self.pause_s)
        if "fails" in queries:
            raise OSError("the disk")
        return [[Hit(query, "", "")] * topk for query in queries][
            : None if "short" not in queries else -1
        ]

    async def ask(self, *queries: str, topk: int = 1) -> list[str]:
        found = await asyncio.gather(*(self.batches.ask(query, topk) for query in queries))
        assert all(len(hits) == topk for hits in found)
        return [hits[0].id for hits in found]


def test_queries_of_one_moment_share_a_call_and_equal_ones_a_place_in_it():
    calls = Calls()
    assert asyncio.run(calls.ask("a", "b", "a")) == ["a", "b", "a"]
    assert calls.made == [(["a", "b"], 1)]


def test_what_is_asked_during_a_call_is_the_next_call():
    async def main():
        calls = Calls(pause_s=0.02)
        first = asyncio.create_task(calls.ask("a"))
        await asyncio.sleep(0.01)
        assert await calls.ask("b", "c") == ["b", "c"]
        assert await first == ["a"]
        return calls.made

    assert asyncio.run(main()) == [(["a"], 1), (["b", "c"], 1)]


def test_calls_hold_one_topk_and_no_more_than_the_largest_number():
    async def main():
        calls = Calls(largest=2)
        await asyncio.gather(calls.ask("a", "b", "c"), calls.ask("d", topk=2), calls.ask("e"))
        return calls.made

    assert asyncio.run(main()) == [(["a", "b"], 1), (["c", "e"], 1), (["d"], 2)]


def test_no_more_calls_than_allowed_are_under_way():
    async def main():
        calls = Calls(pause_s=0.02, largest=1, at_once=2)
        running = asyncio.create_task(calls.ask("a", "b", "c", "d"))
        await asyncio.sleep(0.01)
        assert len(calls.made) == 2
        return await running

    assert asyncio.run(main()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("query", "error"), [("fails", OSError), ("short", ValueError)])
def test_an_error_reaches_everybody_in_the_call_and_nobody_else(query, error):
    async def main():
        calls = Calls()
        asked = [calls.ask(query), calls.ask("x"), calls.ask("y", topk=2)]
        first, second, third = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, error)
        assert isinstance(second, error)
        assert third == ["y"]
        return await calls.ask("later")

    assert asyncio.run(main()) == ["later"]


def test_who_gives_up_is_left_out_of_later_calls():
    async def main():
        calls = Calls(pause_s=0.02)
        first = asyncio.create_task(calls.ask("a"))
        await asyncio.sleep(0.005)
        impatient = asyncio.create_task(calls.ask("b"))
        await asyncio.sleep(0.005)
        impatient.cancel()
        assert await first == ["a"]
        assert await calls.ask("c") == ["c"]
        return calls.made

    assert asyncio.run(main()) == [(["a"], 1), (["c"], 1)]


def test_a_query_that_comes_as_a_call_ends_is_answered():
    async def main():
        calls = Calls()
        for number in range(200):  # each is asked in the very turn in which the one before ends
            async with asyncio.timeout(1.0):
                [hit] = await calls.batches.ask(str(number), 1)
                assert hit.id == str(number)
        return len(calls.made)

    assert asyncio.run(main()) == 200


def test_a_call_is_no_part_of_the_episode_that_asked_first():
    """Otherwise paths, and with them seeds, would depend on who came first."""

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        calls, barrier = Calls(), IdleBarrier()
        with enter_scope((), barrier=barrier):
            await calls.batches.ask("a", 1)
            return current().next_path(), barrier.running

    assert asyncio.run(main()) == ((0,), 1)
