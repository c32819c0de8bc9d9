"""The client's rules: cache, deadline, empty queries, and when it gives up for good."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rolecall.retrieval.base import (
    EmptyQueryError,
    Hit,
    Passage,
    SearchDownError,
    SearchError,
)
from rolecall.retrieval.bm25 import Bm25
from rolecall.retrieval.client import SearchClient
from rolecall.retrieval.embedded import Embedded
from rolecall.retrieval.opening import open_client
from rolecall.retrieval.remote import Servers
from tests.retrieval.foreign import echo, nobody, serving

PASSAGES = [Passage("a", "Ada", "wrote programs"), Passage("b", "Emma", "a novel")]


class Watched:
    """A retriever that notes its calls and threads, and may be slow or broken."""

    identity = "watched"

    def __init__(self, *, pause_s: float = 0.0, broken: int = 0) -> None:
        self.calls: list[list[str]] = []
        self.threads: set[int] = set()
        self.pause_s, self.broken = pause_s, broken

    def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        self.calls.append(queries)
        self.threads.add(threading.get_ident())
        time.sleep(self.pause_s)
        if len(self.calls) <= self.broken:
            raise OSError("the disk is gone")
        return [[Hit(query, "", query, 1.0)] for query in queries]


def test_an_embedded_index_answers_many_episodes_in_few_calls_off_the_loop():
    watched = Watched(pause_s=0.02)

    async def main():
        client = SearchClient(Embedded(watched))
        found = await asyncio.gather(*(client.query(f"q{n}") for n in range(50)))
        await client.close()
        return [hits[0].id for hits in found]

    assert asyncio.run(main()) == [f"q{n}" for n in range(50)]
    assert len(watched.calls) <= 2
    assert threading.get_ident() not in watched.threads


def test_queries_that_differ_in_spaces_only_are_asked_once():
    watched = Watched()

    async def main():
        client = SearchClient(Embedded(watched))
        first = await client.query(" who  wrote\nEmma ")
        first.clear()  # a caller may do with its hits what it likes
        assert [hit.id for hit in await client.query("who wrote Emma")] == ["who wrote Emma"]
        await client.query("who wrote emma")
        await client.query("who wrote Emma", topk=5)

    asyncio.run(main())
    assert watched.calls == [["who wrote Emma"], ["who wrote emma"], ["who wrote Emma"]]


def test_the_cache_forgets_what_was_asked_longest_ago():
    watched = Watched()

    async def main():
        client = SearchClient(Embedded(watched), most_cached=2)
        for query in ("a", "b", "a", "c", "a", "b"):
            await client.query(query)

    asyncio.run(main())
    assert watched.calls == [["a"], ["b"], ["c"], ["b"]]


@pytest.mark.parametrize("query", ["", "   ", "\n\t"])
def test_an_empty_query_is_an_error_of_form_without_a_request(query):
    with serving(echo) as server:
        client = open_client(url=server.url)
        with pytest.raises(EmptyQueryError):
            asyncio.run(client.query(query))
        with pytest.raises(ValueError, match="topk"):
            asyncio.run(client.query("a", topk=0))
        assert server.bodies == []


def test_nothing_found_is_a_result_like_any_other():
    client = SearchClient(Embedded(Bm25.from_passages(PASSAGES)))
    assert asyncio.run(client.query("zebra")) == []
    assert [hit.id for hit in asyncio.run(client.query("novel"))] == ["b"]


def test_a_failing_index_is_an_infrastructure_error_and_is_not_cached():
    client = SearchClient(Embedded(Watched(broken=1)))
    with pytest.raises(SearchError, match="OSError: the disk is gone"):
        asyncio.run(client.query("a"))
    assert asyncio.run(client.query("a")) == [Hit("a", "", "a", 1.0)]


def test_after_too_many_failures_in_a_row_nothing_is_asked_any_more():
    watched = Watched(broken=100)
    client = SearchClient(Embedded(watched), most_failures=3)
    for _ in range(3):
        with pytest.raises(SearchError):
            asyncio.run(client.query("a"))
    with pytest.raises(SearchDownError, match=r"3 searches in a row failed.*the disk is gone"):
        asyncio.run(client.query("a"))
    assert len(watched.calls) == 3


def test_a_success_forgives_earlier_failures():
    client = SearchClient(Embedded(Watched(broken=2)), most_failures=3)
    for _ in range(2):
        with pytest.raises(SearchError):
            asyncio.run(client.query("a"))
    asyncio.run(client.query("b"))
    assert client.failures == 0


def test_a_query_has_one_deadline_waiting_for_others_included():
    async def main():
        client = SearchClient(Embedded(Watched(pause_s=0.3)), deadline_s=0.4)
        first = asyncio.create_task(client.query("a"))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        with pytest.raises(SearchError, match=r"no answer in 0\.4 s"):
            await client.query("b")
        waited_s = time.monotonic() - began
        assert (await first)[0].id == "a"
        return waited_s

    assert asyncio.run(main()) == pytest.approx(0.4, abs=0.15)


def test_a_deadline_says_what_was_in_the_way():
    url = nobody()
    client = SearchClient(Servers([url], deadline_s=0.3), deadline_s=0.3)
    with pytest.raises(SearchError, match=url):
        asyncio.run(client.query("a"))


def test_queries_of_concurrent_episodes_are_merged_into_one_request():
    with serving(echo) as server:

        async def main():
            client = open_client(url=[server.url])
            found = await asyncio.gather(*(client.query(f"q{n}") for n in range(20)))
            await client.close()
            return [hits[0].id for hits in found]

        assert asyncio.run(main()) == [f"q{n}" for n in range(20)]
        assert [len(body["queries"]) for body in server.bodies] == [20]


def test_a_query_that_is_no_text_fails_no_other():
    with serving(echo) as server:

        async def main():
            client = open_client(url=[server.url])
            found = await asyncio.gather(*map(client.query, ("one", "half \ud800", "two")))
            await client.close()
            return [hits[0].id for hits in found]

        assert asyncio.run(main()) == ["one", "half ?", "two"]


def test_a_closed_client_opens_again():
    client = SearchClient(Embedded(Watched()))
    for query in ("a", "b"):
        assert asyncio.run(client.query(query))[0].id == query
        asyncio.run(client.close())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "http://h", "index": "i"}, "no effect"),
        ({"url": "http://h", "model": "m"}, "no effect"),
        ({"dialect": "single"}, "no effect"),
        ({"corpus": "c.jsonl"}, "index is missing"),
        ({"model": "m"}, "index is missing"),
        ({}, "nothing to search"),
        ({"index": "/nowhere/at/all"}, "holds no index"),
    ],
)
def test_places_to_search_that_contradict_or_lead_nowhere_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        open_client(**options)
