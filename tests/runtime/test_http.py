"""Single requests over real sockets: what comes back, and what each failure means."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from rolecall.runtime.http import Http
from rolecall.runtime.retrying import RefusedError, RetryableError, UnreachableError
from tests.retrieval.foreign import nobody, serving


def post(url, body, *, most_bytes=1 << 20, **options):
    async def main():
        http = Http(extra="serve", **options)
        try:
            return await http.ask("POST", url, body=body, most_bytes=most_bytes)
        finally:
            await http.close()

    return asyncio.run(main())


def test_json_is_sent_and_bytes_come_back():
    with serving(lambda body, number: (200, b"any \xff bytes")) as server:
        assert post(server.url, {"text": "half \ud800"}) == b"any \xff bytes"
        assert server.bodies == [{"text": "half \ud800"}]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, RetryableError), (503, RetryableError), (301, RefusedError), (404, RefusedError)],
)
def test_another_status_says_whether_to_try_again_and_what_the_server_said(status, kind):
    with serving(lambda body, number: (status, {"detail": "why"}), Retry_After="9") as server:
        with pytest.raises(kind, match=f"HTTP {status}: .*why") as raised:
            post(server.url, {})
        if kind is RetryableError:
            assert raised.value.after_s == 9.0
            with pytest.raises(RefusedError):
                post(server.url, {}, passing=(418,))


def test_nobody_at_the_url_is_no_answer_at_all():
    with pytest.raises(UnreachableError, match="ConnectError"):
        post(nobody(), {})


@pytest.mark.parametrize("size", [1000, 1001])
def test_an_answer_may_have_as_many_bytes_as_allowed(size):
    with serving(lambda body, number: (200, b"x" * size)) as server:
        if size <= 1000:
            assert len(post(server.url, {}, most_bytes=1000)) == size
            return
        with pytest.raises(RefusedError, match="an answer of more than 1000 bytes") as raised:
            post(server.url, {}, most_bytes=1000)
        assert raised.value.status == 200


def test_what_is_compressed_unasked_is_counted_as_it_unfolds():
    bomb = gzip.compress(b"x" * (64 << 20))
    with (
        serving(lambda body, number: (200, bomb), Content_Encoding="gzip") as server,
        pytest.raises(RefusedError, match="more than 1048576 bytes"),
    ):
        post(server.url, {})


def test_a_failure_is_told_in_a_few_words():
    with serving(lambda body, number: (500, b"x" * 100_000)) as server:
        with pytest.raises(RetryableError) as raised:
            post(server.url, {})
        assert len(str(raised.value)) < 400


def test_a_proxy_of_the_environment_is_asked_only_where_that_is_trusted(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", nobody())
    monkeypatch.setenv("NO_PROXY", "")
    with serving(lambda body, number: (200, body)) as server:
        assert json.loads(post(server.url, {"a": 1}, trust_env=False)) == {"a": 1}
        with pytest.raises(UnreachableError):
            post(server.url, {"a": 1})


def test_one_client_serves_one_event_loop_after_another_and_opens_again():
    with serving(lambda body, number: (200, body)) as server:
        http = Http(extra="serve")

        async def main(word):
            for _ in range(2):
                said = await http.ask("POST", server.url, body=word, most_bytes=99)
                await http.close()
            return json.loads(said)

        assert [asyncio.run(main(word)) for word in ("a", "b")] == ["a", "b"]
        assert server.bodies == ["a", "a", "b", "b"]
