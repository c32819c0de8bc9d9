"""The search tool asks providers of web search in their own formats, here of a local server."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from rolecall.core.interfaces.environment import World
from rolecall.retrieval.base import SearchDownError, SearchError
from rolecall.tools.search import Search
from tests.toy import command, relay_config, write

KEY = "a-key-of-the-tests"
PAGES = [("Emma", "https://a.example/emma", "A <strong>novel</strong> of 1815 &amp; more."),
         ("Emma (film)", "https://a.example/film", "A film.")]  # fmt: skip


def row(page, address: str, text: str) -> dict[str, str]:
    return dict(zip(("title", address, text), page, strict=True))


class Provider(BaseHTTPRequestHandler):
    """Answers as Serper, Tavily, Brave and SearXNG do; keeps what it was asked."""

    asked: ClassVar[list] = []
    status = 200

    def do_GET(self):
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/res/v1/web/search":
            most = int(query["count"])
            rows = [row(page, "url", "description") for page in PAGES[:most]]
            self.reply(query, {"web": {"results": rows}}, key="X-Subscription-Token")
        else:
            assert (parts.path, query["format"]) == ("/search", "json")
            rows = [row(page, "url", "content") for page in PAGES]
            self.reply(query, {"results": rows}, key="")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/search"
        if "q" in body:
            rows = [row(page, "link", "snippet") for page in PAGES[: body["num"]]]
            self.reply(body, {"organic": rows}, key="X-API-KEY")
        else:
            rows = [row(page, "url", "content") for page in PAGES[: body["max_results"]]]
            self.reply(body, {"results": rows}, key="Authorization")

    def reply(self, asked, answer, *, key):
        given = self.headers.get(key, "").removeprefix("Bearer ") if key else KEY
        self.asked.append(asked)
        status = self.status if given == KEY else 401
        text = json.dumps(answer if status == 200 else {"message": f"bad key {given}"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def url(monkeypatch):
    for name in ("SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setattr(Provider, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def search(kit, *queries):
    async def main():
        async with kit.open(World(), seed=0) as [tool]:
            results = [await tool.call(query=query) for query in queries]
        await kit.client.close()
        return results

    return asyncio.run(main())


@pytest.mark.parametrize("provider", ["serper", "tavily", "brave", "searxng"])
def test_each_provider_is_asked_and_read_in_its_own_format(url, provider):
    [first] = search(Search(provider=provider, url=url, topk=1), "who wrote Emma")
    assert first == (
        "<information>\n"
        "Doc 1 (Title: Emma) A novel of 1815 & more. (https://a.example/emma)\n"
        "</information>"
    )
    [asked] = Provider.asked
    assert "who wrote Emma" in (asked.get("q"), asked.get("query"))


def test_the_same_query_is_asked_and_paid_once(url):
    kit = Search(provider="serper", url=url)
    one, two = search(kit, "Emma", " Emma ")
    assert one == two
    assert len(Provider.asked) == 1


def test_a_missing_key_is_one_line_that_names_the_variable(
    model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    config = relay_config(model_folder)
    config["team"]["left"]["tools"] = {
        "use": [{"name": "search", "provider": "serper"}], "format": "tags",
    }  # fmt: skip
    assert command("train", write(tmp_path / "c.yaml", config), "--output", tmp_path / "run") == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "team.left.tools.use[0]: key_env: the environment variable SERPER_API_KEY is not" in line


def test_a_wrong_key_ends_a_search_and_is_shown_to_nobody(url, monkeypatch):
    monkeypatch.setenv("MY_KEY", "another-long-key")
    kit = Search(provider="tavily", url=url, key_env="MY_KEY")
    with pytest.raises(SearchError, match="HTTP 401") as raised:
        search(kit, "Emma")
    assert "another-long-key" not in str(raised.value)
    with pytest.raises(SearchDownError, match="See that MY_KEY holds a valid key"):
        asyncio.run(kit.check())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider": "searxng"}, "url is missing: name your searxng server"),
        ({"provider": "searxng", "url": "http://x", "key_env": "K"}, "searxng needs no key"),
        ({"provider": "serper", "corpus": "x.jsonl"}, "corpus has no effect with provider"),
        ({"provider": "serper", "url": "nowhere"}, "is not the URL of a search server"),
        ({"url": "http://x", "key_env": "K"}, "key_env has no effect without provider"),
    ],
)
def test_options_that_do_not_fit_are_refused(monkeypatch, options, said):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    with pytest.raises(ValueError, match=said):
        Search(**options)
