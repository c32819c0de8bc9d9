"""Model servers of other people, on real sockets: OpenAI's API as a test says it, and SGLang's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG_UP = "hang up"


@dataclass
class Asked:
    """One request as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    number: int  # of its path, from 1


@dataclass
class Told:
    """What it answers beside 200 and JSON."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


Rule = Callable[[Asked], Any]  # -> JSON, bytes, Told or HANG_UP


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, rule: Rule) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rule, self.lock = rule, threading.Lock()
        self.asked: list[Asked] = []
        self.under_way = self.most_under_way = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None  # the client hung up first


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any]) -> None:
        server, headers = self.server, {k.lower(): v for k, v in self.headers.items()}
        with server.lock:
            number = len(server.of(self.path)) + 1
            asked = Asked(self.command, self.path, headers, body, number)
            server.asked.append(asked)
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
        try:
            told = server.rule(asked)
        finally:
            with server.lock:
                server.under_way -= 1
        if told == HANG_UP:
            self.close_connection = True
            return
        if not isinstance(told, Told):
            told = Told(200, told)
        content = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
        self.send_response(told.status)
        for name, value in {**told.headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@contextmanager
def serving(rule: Rule) -> Iterator[Server]:
    with Server(rule) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def chat(text: str | None, *, finish: str = "stop", prompt: int = 100, answer: int = 10, **message):
    """A chat completion of one choice, 40 of its prompt tokens cached."""
    return {
        "choices": [{"index": 0, "finish_reason": finish,
                     "message": {"role": "assistant", "content": text, **message}}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer,
                  "prompt_tokens_details": {"cached_tokens": 40}},
    }  # fmt: skip


def claude(text: str, *, reason: str = "end_turn"):
    """An answer of Anthropic's messages API, with the tokens of `chat`."""
    usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 10,
             "output_tokens_details": {"thinking_tokens": 3}}  # fmt: skip
    content = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    content += [{"type": "text", "text": text}]
    return {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": reason, "usage": usage}  # fmt: skip


def gemini(text: str, *, reason: str = "STOP"):
    """The same of Gemini."""
    parts = [{"text": "hm", "thought": True}, {"text": text}]
    usage = {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 7,
             "thoughtsTokenCount": 3}  # fmt: skip
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason}
    return {"candidates": [candidate], "usageMetadata": usage}


def refused(status: int, message: str, *, code: str | None = None, **headers: str) -> Told:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Told(status, {"error": {"message": message, "code": code}}, named)
