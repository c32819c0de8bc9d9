"""Search servers of other people, on real sockets, as tests need them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any], int], tuple[int, Any]]  # (body, number from 1) -> status, JSON


class Foreign(ThreadingHTTPServer):
    """Answers every POST with what `reply` says and keeps the bodies."""

    daemon_threads = True

    def __init__(self, reply: Reply, headers: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.headers = reply, headers
        self.bodies: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Foreign

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        status, told = self.server.reply(body, len(self.server.bodies))
        content = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@contextmanager
def serving(reply: Reply, **headers: str) -> Iterator[Foreign]:
    """`serving(reply, Retry_After="1")`: underscores in headers stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with Foreign(reply, named) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def echo(body: dict[str, Any], number: int) -> tuple[int, Any]:
    """Each query is found in one document, which says it."""
    rows = [[{"document": {"id": q, "contents": f'"{q}"\nsays {q}'}, "score": 1.0}]
            for q in body.get("queries", [body.get("query")])]  # fmt: skip
    return 200, {"result": rows}


def nobody() -> str:
    """A URL that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"
