"""Asks a provider of web search: Serper, Tavily, Brave, or a SearXNG server of one's own.

| provider | request                           | key                   | results     |
|----------|-----------------------------------|-----------------------|-------------|
| serper   | POST /search {q, num}             | X-API-KEY             | organic     |
| tavily   | POST /search {query, max_results} | Authorization: Bearer | results     |
| brave    | GET /res/v1/web/search?q=&count=  | X-Subscription-Token  | web.results |
| searxng  | GET /search?q=&format=json        | none                  | results     |
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode, urlsplit

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.retrieval.base import Hit, SearchError
from rolecall.runtime.http import Http
from rolecall.runtime.retrying import GaveUpError, RefusedError, Retrying, RetryLimits
from rolecall.runtime.secret_texts import excerpt, read_token, remember_secret, scrub

Provider = Literal["serper", "tavily", "brave", "searxng"]
AT_ONCE = 4
MOST_BYTES = 8 << 20  # of one reply
MARKS = re.compile(r"</?(?:strong|b|em)>")  # around words of the query


@dataclass(frozen=True, slots=True)
class Form:
    """Says how a provider is asked, and where its results are."""

    url: str  # "" where there is no server for all
    key_env: str  # "" where no key is needed
    headers: Callable[[str], dict[str, str]]
    body: Callable[[str, int], JsonObject] | None  # None: a GET
    params: Callable[[str, int], dict[str, str]]
    results: tuple[str, ...]  # keys that lead to them
    names: tuple[str, str, str]  # of the title, the address and the text


FORMS: dict[Provider, Form] = {
    "serper": Form(
        "https://google.serper.dev/search", "SERPER_API_KEY",
        lambda key: {"X-API-KEY": key}, lambda q, n: {"q": q, "num": n}, lambda q, n: {},
        ("organic",), ("title", "link", "snippet"),
    ),
    "tavily": Form(
        "https://api.tavily.com/search", "TAVILY_API_KEY",
        lambda key: {"Authorization": f"Bearer {key}"},
        lambda q, n: {"query": q, "max_results": n}, lambda q, n: {},
        ("results",), ("title", "url", "content"),
    ),
    "brave": Form(
        "https://api.search.brave.com/res/v1/web/search", "BRAVE_API_KEY",
        lambda key: {"X-Subscription-Token": key}, None,
        lambda q, n: {"q": q, "count": str(n)}, ("web", "results"), ("title", "url", "description"),
    ),
    "searxng": Form(
        "", "", lambda key: {}, None, lambda q, n: {"q": q, "format": "json"},
        ("results",), ("title", "url", "content"),
    ),
}  # fmt: skip


class WebSearch:
    """The source of a `SearchClient` that asks a provider, one query in a request."""

    def __init__(
        self,
        provider: Provider,
        *,
        url: str | None = None,
        key_env: str | None = None,
        deadline_s: float = 30.0,
    ) -> None:
        """Read the key; raises ValueError where it or the address is missing."""
        form = self._form = FORMS[provider]
        if key_env is not None and not form.key_env:
            raise ValueError(f"key_env has no effect: {provider} needs no key; remove it")
        if not url and not form.url:
            raise ValueError(f"url is missing: name your {provider} server, http://host:8080")
        self.url = _endpoint(url, form) if url else form.url
        self.key_env = (key_env or form.key_env) or None
        key = read_token(self.key_env, key="key_env")
        remember_secret(key)
        self.identity = f"{provider} {self.url}"
        self.largest, self.at_once, self.trouble = 1, AT_ONCE, ""
        self._retrying = Retrying(RetryLimits(deadline_s=deadline_s, concurrency=AT_ONCE))
        self._http = Http(extra="search", headers=form.headers(key))

    @property
    def remedy(self) -> str:
        """Return what to do where it does not answer."""
        if self.key_env is None:
            return "Start one there, with `json` among its formats, or set `url` to one that runs"
        return f"See that {self.key_env} holds a valid key, and that this machine reaches the web"

    async def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
        """Search; raises SearchError when the deadline is over or no further try can help."""
        return [await self._search(query, topk) for query in queries]

    async def close(self) -> None:
        await self._http.close()

    async def _search(self, query: str, topk: int) -> list[Hit]:
        try:
            content = await self._retrying.call(lambda: self._ask(query, topk))
            reply = json.loads(content)
        except GaveUpError as error:
            raise self._failed(f"no answer in {error.limit}: {error.last or ''}") from error
        except RefusedError as error:
            raise self._failed(str(error)) from error
        except ValueError as error:
            raise self._failed(f"no JSON in {excerpt(content, 200)!r}") from error
        return self._read(reply)[:topk]

    async def _ask(self, query: str, topk: int) -> bytes:
        form, params = self._form, urlencode(self._form.params(query, topk))
        url = f"{self.url}?{params}" if params else self.url
        method = "GET" if form.body is None else "POST"
        body = None if form.body is None else form.body(query, topk)
        return await self._http.ask(method, url, most_bytes=MOST_BYTES, body=body)

    def _read(self, reply: JsonValue) -> list[Hit]:
        results = reply
        for name in self._form.results:
            if not isinstance(results, dict):
                raise self._failed(f"a reply of another form: {excerpt(reply, 200)}")
            results = results.get(name, [])  # what finds nothing may have no such key
        if not isinstance(results, list):
            raise self._failed(f"a reply of another form: {excerpt(reply, 200)}")
        return [self._hit(result) for result in results if isinstance(result, dict)]

    def _hit(self, result: JsonObject) -> Hit:
        title, address, text = (_plain(result.get(name)) for name in self._form.names)
        return Hit(address, title, f"{text} ({address})" if address else text, None)

    def _failed(self, reason: str) -> SearchError:
        self.trouble = scrub(f"{self.url}: {reason}")
        return SearchError(self.trouble)


def _plain(value: JsonValue) -> str:
    return html.unescape(MARKS.sub("", value)) if isinstance(value, str) else ""


def _endpoint(url: str, form: Form) -> str:
    """Return the address to ask; one without a path has that of the provider's."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is not the URL of a search server, such as http://host:8080")
    path = urlsplit(form.url).path or "/search"
    return url if parts.path.strip("/") else url.rstrip("/") + path
