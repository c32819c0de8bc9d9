"""Servers fail in every way; the client tries again where that can help, and never for long."""

from __future__ import annotations

import asyncio
import time

import pytest

from rolecall.retrieval.base import SearchError
from rolecall.retrieval.remote import Servers
from tests.retrieval.foreign import echo, nobody, serving

pytestmark = pytest.mark.slow


def search(servers, *queries):
    async def main():
        try:
            return await servers.search(list(queries), 3)
        finally:
            await servers.close()

    return [[hit.id for hit in hits] for hits in asyncio.run(main())]


def test_a_batch_of_queries_is_one_request_that_asks_for_scores():
    with serving(echo) as server:
        assert search(Servers([server.url]), "a", "b", "c") == [["a"], ["b"], ["c"]]
        assert server.bodies == [{"queries": ["a", "b", "c"], "topk": 3, "return_scores": True}]


def test_a_server_of_the_single_dialect_gets_one_query_a_request():
    with serving(echo) as server:
        servers = Servers([server.url], dialect="single")
        assert servers.largest == 1
        assert search(servers, "a") == [["a"]]
        assert server.bodies == [{"query": "a", "topk": 3, "return_scores": True}]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_status_that_may_pass_is_tried_again(status):
    def reply(body, number):
        return (status, "busy") if number < 3 else echo(body, number)

    with serving(reply) as server:
        assert search(Servers([server.url]), "a") == [["a"]]
        assert len(server.bodies) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 301])
def test_any_other_status_is_final_at_once(status):
    with serving(lambda body, number: (status, {"detail": "no"})) as server:
        with pytest.raises(SearchError, match=f"HTTP {status}.*no"):
            search(Servers([server.url]), "a")
        assert len(server.bodies) == 1


@pytest.mark.parametrize("told", [b"<html>", {"result": [[], []]}, b"\xff"])
def test_a_reply_that_cannot_be_read_is_final_at_once(told):
    with serving(lambda body, number: (200, told)) as server:
        with pytest.raises(SearchError):
            search(Servers([server.url]), "a")
        assert len(server.bodies) == 1


def test_the_deadline_ends_all_trying_and_says_what_went_wrong():
    with serving(lambda body, number: (503, "full up")) as server:
        began = time.monotonic()
        with pytest.raises(SearchError, match=r"no answer in 0\.5 s.*HTTP 503.*full up"):
            search(Servers([server.url], deadline_s=0.5), "a")
        assert 0.4 < time.monotonic() - began < 2.0
        assert 2 <= len(server.bodies) <= 6, "pauses grow between tries"


def test_a_server_that_hangs_is_given_up_in_time():
    def reply(body, number):
        time.sleep(1.0 if number == 1 else 0.0)
        return echo(body, number)

    with serving(reply) as server:
        began = time.monotonic()
        assert search(Servers([server.url], deadline_s=0.9), "a") == [["a"]]
        assert time.monotonic() - began < 0.9


def test_nobody_at_the_url_is_an_infrastructure_error():
    with pytest.raises(SearchError, match=r"no answer in 0\.3 s"):
        search(Servers([nobody()], deadline_s=0.3), "a")


def test_a_server_that_wants_to_be_left_alone_is():
    with serving(lambda body, number: (429, "slow down"), Retry_After="60") as server:
        with pytest.raises(SearchError, match="429"):
            search(Servers([server.url], deadline_s=5.0), "a")
        assert len(server.bodies) == 1


def test_one_server_that_wants_to_be_left_alone_leaves_the_others():
    def fails_once(body, number):
        return (500, "broken") if number == 1 else echo(body, number)

    with serving(lambda body, number: (429, "slow down"), Retry_After="60") as alone:
        with serving(fails_once) as other:
            servers = Servers([other.url, alone.url], deadline_s=5.0)
            assert search(servers, "a") == [["a"]]
        assert len(alone.bodies) == 1
        servers = Servers([alone.url, alone.url], deadline_s=5.0)
        began = time.monotonic()
        with pytest.raises(SearchError, match="slow down"):
            search(servers, "a")
        assert time.monotonic() - began < 2.0
        assert len(alone.bodies) == 3


def test_a_reply_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("rolecall.retrieval.remote.MOST_BYTES", 1000)
    with serving(lambda body, number: (200, b" " * 100_000)) as server:
        with pytest.raises(SearchError, match="an answer of more than 1000 bytes"):
            search(Servers([server.url]), "a")
        assert len(server.bodies) == 1


def test_several_servers_are_asked_in_turn():
    with serving(echo) as first, serving(echo) as second:
        servers = Servers([first.url, second.url])

        async def main():
            for number in range(6):
                await servers.search([str(number)], 1)
            await servers.close()

        asyncio.run(main())
        assert (len(first.bodies), len(second.bodies)) == (3, 3)


def test_a_server_that_fails_rests_while_another_answers():
    with serving(echo) as good, serving(lambda body, number: (500, "broken")) as bad:
        servers = Servers([bad.url, good.url, nobody()])

        async def main():
            began = time.monotonic()
            for number in range(9):
                [[hit]] = await servers.search([str(number)], 1)
                assert hit.id == str(number)
            await servers.close()
            return time.monotonic() - began

        assert asyncio.run(main()) < 2.0
        assert len(good.bodies) == 9
        assert 1 <= len(bad.bodies) <= 4


def test_nobody_waits_where_another_server_is_free(monkeypatch):
    monkeypatch.setattr("rolecall.retrieval.remote.FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr("rolecall.retrieval.remote.LONGEST_PAUSE_S", 60.0)
    with serving(echo) as good:
        began = time.monotonic()
        assert search(Servers([good.url, nobody()]), "a") == [["a"]]
        assert time.monotonic() - began < 2.0


def test_one_client_serves_one_event_loop_after_another():
    with serving(echo) as server:
        servers = Servers([server.url])
        for query in ("a", "b"):
            assert [[h.id] for [h] in asyncio.run(servers.search([query], 1))] == [[query]]


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://h:8000", "http://h:8000/retrieve"),
        ("http://h:8000/", "http://h:8000/retrieve"),
        ("https://h/api/retrieve", "https://h/api/retrieve"),
    ],
)
def test_a_url_without_a_path_means_retrieve(url, endpoint):
    assert Servers([url]).servers[0].url == endpoint


@pytest.mark.parametrize("urls", [["h:8000"], ["ftp://h"], ["http://"], [""], []])
def test_what_is_no_url_is_refused(urls):
    with pytest.raises(ValueError, match="URL"):
        Servers(urls)
