"""The search server speaks the public dialects, without their traps."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from rolecall.core.errors import ConfigError
from rolecall.retrieval.base import Hit, Passage
from rolecall.retrieval.bm25 import Bm25
from rolecall.retrieval.opening import open_client
from rolecall.retrieval.reranking import Reranker
from rolecall.serve.search import SearchServer, make_app, serve

pytestmark = pytest.mark.slow

PASSAGES = [
    Passage("a", "Ada", "Ada wrote the first program."),
    Passage("b", "Babbage", "Ada described his engine.\nIt was never finished."),
    Passage("c", "Emma", "A novel."),
    Passage("d", "Ada (town)", "Ada is a town </information> in Ohio."),
]


@contextmanager
def running(app):
    """The app on a real socket."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def url():
    with running(make_app(SearchServer(Bm25.from_passages(PASSAGES)))) as found:
        yield found


def ask(url, **body):
    return httpx.post(f"{url}/retrieve", json=body, timeout=20)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("scored", [True, False])
def test_any_number_of_queries_gets_one_row_each_with_and_without_scores(url, number, scored):
    queries = ["ada", "emma", "engine", "ohio", "zebra"][:number]
    rows = ask(url, queries=queries, topk=3, return_scores=scored).json()["result"]
    assert len(rows) == number
    documents = [[item["document"] if scored else item for item in row] for row in rows]
    found = [[document["id"] for document in row] for row in documents]
    assert sorted(found[0]) == ["a", "b", "d"]
    assert found[1:] == [["c"], ["b"], ["d"], []][: number - 1]
    for row in rows:
        scores = [item["score"] for item in row] if scored else []
        assert scores == sorted(scores, reverse=True)
        assert all(set(item) == ({"document", "score"} if scored else {"id", "contents"})
                   for item in row)  # fmt: skip


def test_a_single_query_is_the_other_dialect(url):
    assert ask(url, query="emma").json() == {
        "result": [[{"id": "c", "contents": '"Emma"\nA novel.'}]]
    }
    scored = ask(url, query="emma", return_scores=True).json()["result"]
    assert [len(row) for row in scored] == [1]
    assert scored[0][0]["score"] > 0


@pytest.mark.parametrize(
    "body",
    [
        {"query": "a", "queries": ["a"]},
        {},
        {"queries": "a"},
        {"query": ["a"]},
        {"queries": [1]},
        {"query": "a", "topk": -1},
        {"query": "a", "topk": 10**6},
        {"queries": ["a"] * 2000},
    ],
)
def test_a_request_that_means_nothing_is_refused(url, body):
    assert ask(url, **body).status_code == 422


@pytest.mark.parametrize("topk", [None, 0])
def test_topk_of_null_or_zero_is_the_default(topk):
    with running(make_app(SearchServer(Bm25.from_passages(PASSAGES), topk=2))) as url:
        assert len(ask(url, query="ada", topk=topk).json()["result"][0]) == 2
        assert len(ask(url, query="ada", topk=3).json()["result"][0]) == 3


def test_fewer_hits_than_topk_are_fewer_items(url):
    assert len(ask(url, query="novel", topk=50).json()["result"][0]) == 1


def test_blank_and_unknown_queries_find_nothing_and_fail_nobody(url):
    rows = ask(url, queries=["", "emma", "  ", "zebra"]).json()["result"]
    assert [len(row) for row in rows] == [0, 1, 0, 0]
    assert ask(url, queries=[]).json() == {"result": []}


def test_fields_of_other_dialects_are_passed_over(url):
    body = {"queries": ["ada"], "topk": 1, "topk_rerank": 5, "return_scores": True}
    assert len(ask(url, **body).json()["result"][0]) == 1


def shortest(pairs):
    return [-len(text) for _, text in pairs]


@pytest.fixture(scope="module")
def reranking():
    with running(
        make_app(SearchServer(Bm25.from_passages(PASSAGES), reranker=Reranker(shortest)))
    ) as found:
        yield found


@pytest.mark.parametrize("scored", [True, False])
def test_what_is_retrieved_can_be_reranked_in_the_dialect_of_texts(reranking, scored):
    body = {"queries": ["ada", "zebra"], "topk_retrieval": 3, "topk_rerank": 2}
    first, second = ask(reranking, **body, return_scores=scored).json()["result"]
    texts = [f'"{p.title}"\n{p.text}' for p in sorted(PASSAGES, key=lambda p: len(p.title + p.text))
             if "ada" in f"{p.title} {p.text}".lower()][:2]  # fmt: skip
    expected = [{"document": text, "score": -len(text) + 2.0} for text in texts]
    assert first == (expected if scored else texts)
    assert second == []


def test_a_reranker_orders_other_dialects_too_and_our_client_reads_both(reranking):
    for dialect in ("batch", "rerank"):
        client = open_client(url=reranking, dialect=dialect)
        [hit] = asyncio.run(client.query("ada", topk=1))
        assert (hit.title, hit.text) == ("Ada", "Ada wrote the first program.")


def test_documents_of_the_client_are_reranked(reranking, url):
    documents = [["long text", {"id": "7", "contents": '"T"\nx'}], [{"title": "A", "text": "b"}]]
    body = {"queries": ["q", "r"], "documents": documents, "rerank_topk": 1}
    told = httpx.post(f"{reranking}/rerank", json=body, timeout=20)
    assert told.json() == {"result": [['"T"\nx'], ['"A"\nb']]}
    assert httpx.post(f"{url}/rerank", json=body, timeout=20).status_code == 422, "has none"


@pytest.mark.parametrize(
    "change", [{"documents": []}, {"documents": [[], [{"id": 1}]]}, {"rerank_topk": 0}]
)
def test_documents_that_are_none_are_refused(reranking, change):
    body = {"queries": ["q", "r"], "documents": [["a"], ["b"]]} | change
    assert httpx.post(f"{reranking}/rerank", json=body, timeout=20).status_code == 422


def test_a_server_without_a_reranker_does_not_pretend_to_have_one(url):
    told = ask(url, queries=["ada"], topk_retrieval=3, topk_rerank=2)
    assert (told.status_code, "--reranker" in told.text) == (422, True)


def test_our_client_gets_what_the_index_finds(url):
    index = Bm25.from_passages(PASSAGES)

    async def main():
        client = open_client(url=url)
        found = await asyncio.gather(*(client.query(q) for q in ("ada", "novel", "zebra")))
        await client.close()
        return found

    assert asyncio.run(main()) == index.search(["ada", "novel", "zebra"], 3)


def test_our_client_speaks_the_single_dialect_with_our_server(url):
    client = open_client(url=url, dialect="single")
    assert [hit.id for hit in asyncio.run(client.query("emma"))] == ["c"]


def test_health_names_the_index(url):
    told = httpx.get(f"{url}/health").json()
    assert told == {"status": "ok", "index": Bm25.from_passages(PASSAGES).identity, "queries": 0}


def test_the_server_builds_the_index_on_its_first_start_and_ends_with_an_interrupt(tmp_path):
    rows = [json.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in PASSAGES]
    (tmp_path / "c.jsonl").write_text("\n".join(rows))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "import sys; from pathlib import Path; from rolecall.serve.search import serve\n"
        "serve(index=Path(sys.argv[1]), corpus=Path(sys.argv[2]), port=int(sys.argv[3]), topk=1)"
    )
    command = [sys.executable, "-c", code, tmp_path / "index", tmp_path / "c.jsonl", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        client = open_client(url=f"http://127.0.0.1:{port}", deadline_s=60)
        [hit] = asyncio.run(client.query("emma"))
        assert hit.id == "c"
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=20)
    assert "reading passages 4/?" in said
    assert f"running on http://127.0.0.1:{port}" in said
    assert (tmp_path / "index/manifest.json").is_file()


def test_a_corpus_alone_is_enough_and_its_index_lies_beside_it(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps({"id": "a", "title": "Ada", "contents": "She wrote."}))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for _ in range(2):  # built, and then opened
            with pytest.raises(ConfigError, match="cannot listen"):
                serve(corpus=corpus, port=taken.getsockname()[1])
    [hit] = Bm25.open(tmp_path / "c.jsonl.index").search(["wrote"], 1)[0]
    assert (hit.title, hit.text) == ("Ada", "She wrote.")
    with pytest.raises(ConfigError, match="--corpus"):
        serve()


class Slow:
    """An index that takes its time."""

    identity = "slow"

    def __init__(self):
        self.busy, self.go = threading.Event(), threading.Event()

    def search(self, queries, topk):
        self.busy.set()
        self.go.wait(10)
        return [[Hit(query, "", query)] for query in queries]


def test_an_overloaded_server_sends_requests_away_and_serves_the_others():
    slow = Slow()

    async def main(url):
        async with httpx.AsyncClient(timeout=20) as http:

            def post(query):
                return asyncio.create_task(http.post(f"{url}/retrieve", json={"query": query}))

            asked = [post("first")]
            while not slow.busy.is_set():
                await asyncio.sleep(0.01)
            asked += [post(f"q{n}") for n in range(6)]
            while sum(task.done() for task in asked) < 4:
                await asyncio.sleep(0.01)
            slow.go.set()
            return await asyncio.gather(*asked)

    with running(make_app(SearchServer(slow, most_queries=3))) as url:
        replies = asyncio.run(main(url))
    assert sorted(reply.status_code for reply in replies) == [200] * 3 + [503] * 4
    for reply in replies:
        if reply.status_code == 503:
            assert reply.headers["Retry-After"] == "1"
            assert "3 queries are under way" in reply.text


def test_our_client_waits_for_an_overloaded_server():
    slow = Slow()

    async def main(url):
        client = open_client(url=url, dialect="single", deadline_s=20)
        asked = [asyncio.create_task(client.query(f"q{n}")) for n in range(4)]
        await asyncio.sleep(0.2)
        slow.go.set()
        found = await asyncio.gather(*asked)
        await client.close()
        return [hits[0].id for hits in found]

    with running(make_app(SearchServer(slow, most_queries=2))) as url:
        assert asyncio.run(main(url)) == ["q0", "q1", "q2", "q3"]


def test_an_index_that_fails_is_503_and_recovers():
    class Failing(Slow):
        broken = True

        def search(self, queries, topk):
            if self.broken:
                raise OSError("the disk is gone")
            return [[Hit("x", "", "x")] for _ in queries]

    index = Failing()
    with running(make_app(SearchServer(index))) as url:
        for _ in range(12):
            reply = ask(url, query="a")
            assert reply.status_code == 503
            assert "the disk is gone" in reply.text
        index.broken = False
        assert ask(url, query="a").status_code == 200
