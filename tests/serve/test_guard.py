"""Who may ask a server, how much, and what becomes of clients that stop in the middle."""

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
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import uvicorn

from rolecall.core.errors import ConfigError
from rolecall.retrieval.base import Passage
from rolecall.retrieval.bm25 import Bm25
from rolecall.serve import binding, guard, sandbox, search
from rolecall.serve.guard import Guard, Rules
from tests.sandbox.places import working_sandbox

pytestmark = pytest.mark.slow

PASSAGES = [Passage("a", "Ada", "Ada wrote the first program."), Passage("c", "Emma", "A novel.")]
QUERY = json.dumps({"query": "ada"}).encode()


@contextmanager
def running(app):
    """The application as `rolecall serve` runs it, on a free port; yields the port."""
    server = uvicorn.Server(binding.settings(app, port=0, log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def port():
    with running(search.make_app(search.SearchServer(Bm25.from_passages(PASSAGES)))) as found:
        yield found


def ask(port, headers=None, content=QUERY, path="/retrieve"):
    json_type = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}{path}"
    return httpx.post(url, content=content, headers=json_type | (headers or {}), timeout=20)


def connected(port, sent: bytes) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=20)
    found.sendall(sent)
    return found


def head(length: int) -> bytes:
    return (
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % length
    )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "127.0.0.1.example"}, 403),
        ({"Origin": "https://site.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_a_page_of_another_site_cannot_ask_a_local_server(port, headers, status):
    assert ask(port, headers).status_code == status


def test_a_page_cannot_have_code_run():
    box = working_sandbox(concurrency=1, warm=0)
    with running(sandbox.make_app(sandbox.SandboxServer(box))) as port:
        code = json.dumps({"code": "print(1)"}).encode()
        for headers in ({"Content-Type": "text/plain"}, {"Origin": "https://site.example"}):
            assert ask(port, headers, code, "/run_code").status_code in (403, 415)
        assert ask(port, {}, code, "/run_code").json()["run_result"]["stdout"] == "1\n"


def test_a_token_is_taken_from_every_header_in_which_clients_send_keys():
    rules = replace(search.RULES, token="word", local=False)
    app = search.make_app(search.SearchServer(Bm25.from_passages(PASSAGES)), rules=rules)
    with running(app) as port:
        assert ask(port).status_code == 401
        assert ask(port, {"Authorization": "Bearer other"}).status_code == 401
        assert ask(port, {"Authorization": "Basic no base64!"}).status_code == 401
        assert ask(port, {"Authorization": "word"}).status_code == 401
        assert ask(port, {"x-api-key": "other"}).status_code == 401
        assert ask(port, {"Authorization": "Bearer word", "Host": "a.example"}).status_code == 200
        assert ask(port, {"x-api-key": "word"}).status_code == 200
        assert ask(port, {"x-goog-api-key": "word"}).status_code == 200
        url = f"http://any:word@127.0.0.1:{port}"
        assert httpx.post(f"{url}/retrieve", json={"query": "ada"}).status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "machine.example"])
def test_an_address_that_others_reach_needs_a_token(host):
    for serve in (sandbox.serve, lambda host: search.serve(index=Path("none"), host=host)):
        with pytest.raises(ConfigError, match="--token-env"):
            serve(host)
    binding.check_address(host, token="word")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_none(host):
    binding.check_address(host, token="")


def test_a_body_that_is_too_large_is_refused_before_it_is_sent():
    server = search.SearchServer(Bm25.from_passages(PASSAGES))
    with (
        running(search.make_app(server, rules=Rules(body_bytes=1 << 20))) as port,
        connected(port, head(2 << 20)) as client,
    ):
        assert client.recv(4096).startswith(b"HTTP/1.1 413")
        chunks = iter([b"x" * (1 << 20)] * 2)
        url = f"http://127.0.0.1:{port}/retrieve"
        assert httpx.post(url, content=chunks).status_code == 413  # that tells no length


def gate(**rules):
    """An application behind a guard that says how long a body was."""

    async def told(scope, receive, send):
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % len(body)})

    return Guard(told, Rules(**rules))


def test_a_request_takes_its_place_before_its_body_is_read_and_gives_it_back():
    app = gate(requests=1)
    with running(app) as port:
        with connected(port, head(100) + b"x" * 10):
            while not app._bytes:
                time.sleep(0.01)
            assert ask(port).status_code == 503
        while app._requests:  # the client has left
            time.sleep(0.01)
        assert ask(port).text == str(len(QUERY))
    assert app._bytes == 0


def test_large_bodies_are_limited_together_too():
    app = gate(body_bytes=100)
    with running(app) as port:
        clients = [connected(port, head(100) + b"x" * 99) for _ in range(4)]
        while app._bytes < 4 * 99:
            time.sleep(0.01)
        assert ask(port).status_code == 503
        for client in clients:
            client.sendall(b"x")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            client.close()
        assert ask(port).status_code == 200


def test_a_body_counts_until_the_application_has_it_and_not_until_the_answer():
    finish = threading.Event()

    async def answer_late(scope, receive, send):
        await receive()
        await asyncio.to_thread(finish.wait, 20)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = Guard(answer_late, Rules(body_bytes=100))
    with running(app) as port:
        clients = [connected(port, head(100) + b"x" * 100) for _ in range(8)]
        while app._requests < 8 or app._bytes:
            time.sleep(0.01)
        finish.set()
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            client.close()


def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.2)
    with running(gate()) as port, connected(port, head(100) + b"x") as client:
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_connection_without_a_request_is_closed(monkeypatch):
    monkeypatch.setattr(binding, "HEAD_S", 0.2)
    with running(gate()) as port:
        for begun in (b"", b"POST /retrieve HTTP/1.1\r\nHost: loc"):
            with connected(port, begun) as client:
                assert client.recv(4096) == b""
        with connected(port, head(1) + b"x") as client:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            client.sendall(b"POST /retrieve HT")
            while client.recv(4096):
                continue


def test_a_client_that_leaves_in_mid_body_leaves_no_traceback(caplog):
    box = working_sandbox(concurrency=1, warm=0)
    with running(sandbox.make_app(sandbox.SandboxServer(box))) as port:
        told = head(1000).replace(b"/retrieve", b"/run_code")
        connected(port, told + b'{"code": ').close()
        assert ask(port, {}, b'{"code": "print(1)"}', "/run_code").status_code == 200
    assert [record for record in caplog.records if record.exc_info] == []


def test_the_place_of_a_client_that_left_is_free():
    box = working_sandbox(concurrency=1, warm=1)
    with running(sandbox.make_app(sandbox.SandboxServer(box))) as port:
        for body in ({"code": "import time; time.sleep(200)", "run_timeout": 250},):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"http://127.0.0.1:{port}/run_code", json=body, timeout=1.5)
        cells = {"cells": ["import time; time.sleep(200)"], "total_timeout": 250}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"http://127.0.0.1:{port}/run_jupyter", json=cells, timeout=1.5)
        said = ask(port, {}, b'{"code": "print(1)"}', "/run_code").json()
    assert said["run_result"]["stdout"] == "1\n"


def test_the_server_ends_soon_when_it_is_told_to(tmp_path):
    working_sandbox(warm=0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = f"from rolecall.serve.sandbox import serve; serve(port={port}, concurrency=1)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as run:
        started = time.monotonic()
        while time.monotonic() < started + 60:
            try:
                httpx.get(f"http://127.0.0.1:{port}/v1/ping")
                break
            except httpx.TransportError:
                time.sleep(0.05)
        sleeping = json.dumps({"code": "import time; time.sleep(200)", "run_timeout": 250}).encode()
        request = head(len(sleeping)).replace(b"/retrieve", b"/run_code") + sleeping
        with connected(port, request):
            time.sleep(1.0)  # the program has begun, or is about to: either way it must end
            run.send_signal(signal.SIGTERM)
            _, said = run.communicate(timeout=25)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "files", [{"a": "", "a/b": ""}, {"n" * 300: ""}, {"/".join(["d" * 200] * 30): ""}]
)
def test_files_that_cannot_lie_beside_one_another_are_422(files):
    box = working_sandbox(concurrency=1, warm=0)
    with running(sandbox.make_app(sandbox.SandboxServer(box))) as port:
        for path, body in (("/run_code", {"code": ""}), ("/run_jupyter", {"cells": []})):
            content = json.dumps(body | {"files": files}).encode()
            assert ask(port, {}, content, path).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        b'{"query": "a", "topk": NaN}', b'{"query": "\\ud800"}', b'{"query": "a", "topk": 1e999}',
        b'{"query": "a", "topk": ' + b"1" * 5000 + b"}", b"[" * 100_000, b"", b"\xff", b"[]",
    ],
)  # fmt: skip
def test_what_is_no_value_of_json_is_422(port, body):
    assert ask(port, {}, body).status_code == 422
    assert ask(port, {}, body, "/rerank").status_code == 422


def test_a_run_takes_no_longer_than_the_server_allows():
    box = working_sandbox(concurrency=1, warm=1)
    with running(sandbox.make_app(sandbox.SandboxServer(box, most_wall_s=0.5))) as port:
        content = json.dumps({"code": "while True: pass", "run_timeout": 100}).encode()
        said = ask(port, {}, content, "/run_code").json()
        assert said["run_result"]["status"] == "TimeLimitExceeded"
        assert said["message"] == "a run may take 0.5 s here"
        told = httpx.get(f"http://127.0.0.1:{port}/v1/capabilities").json()
        assert told["max_run_timeout"] == 0.5


def test_a_request_whose_client_leaves_is_cancelled_and_has_ended():
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def leaves():
        return {"type": "http.disconnect"}

    with pytest.raises(guard.Refused, match="has left"):
        asyncio.run(guard.while_connected(leaves, work()))
    assert ended


@pytest.mark.parametrize(
    "headers",
    [{"Host": "[::1"}, {"Origin": "http://["}, {"Host": "[]"}, {"Origin": "//[x]:y]"},
     {"Host": "127.0.0.1:x"}, {"Origin": "http://\u00e9".encode("latin-1")}],
)  # fmt: skip
def test_headers_that_are_no_addresses_are_refused_and_no_fault_of_the_server(port, headers):
    assert ask(port, headers).status_code in (200, 400, 403)


def answered(rules: Rules, headers: dict[str, str]) -> list[dict]:
    """What a WebSocket with these headers is sent; the inner application accepts all."""
    sent = []

    async def inner(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "websocket", "path": "/ws", "headers": raw}
    asyncio.run(Guard(inner, rules)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    ("headers", "is_served"),
    [({"Host": "127.0.0.1:80", "Authorization": "Bearer s3cret"}, True),
     ({"Host": "127.0.0.1:80"}, False),
     ({"Host": "127.0.0.1:80", "Authorization": "Bearer other"}, False),
     ({"Host": "127.0.0.1:80", "Authorization": "Bearer s3cret", "Origin": "http://evil"}, False),
     ({"Host": "evil.example", "Authorization": "Bearer s3cret"}, False),
     ({"Host": "[::1", "Authorization": "Bearer s3cret"}, False)],
)  # fmt: skip
def test_a_websocket_is_asked_for_what_a_request_is_asked_for(headers, is_served):
    [message] = answered(Rules(token="s3cret"), headers)
    accepted, closed = {"type": "websocket.accept"}, {"type": "websocket.close", "code": 1008}
    assert message == (accepted if is_served else closed)
