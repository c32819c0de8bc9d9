"""Lets only allowed HTTP requests through to an application, with a bounded body.

Consumes connections, produces requests whose body has been read. A request takes its place in the
queue before its body is read, and gives it back when it is answered or its client has left.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rolecall.core.json_types import JsonObject

Result = TypeVar("Result")


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_S = 60.0  # from a request's head to the end of its body
POLICY_VIOLATION = 1008  # why a WebSocket is closed
KEY_HEADERS = ("x-api-key", "x-goog-api-key")
HELD = 4  # bodies of the largest size that may be in memory at once


class Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status, self.told = status, told


def describe_refusal(refused: Refused, path: str) -> JsonObject:
    """Return the body of a refusal, in FastAPI's form."""
    return {"detail": refused.told}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules on who may ask, how much, and how many at once."""

    token: str = ""  # asked for; "": anybody who reaches the server may ask
    local: bool = True  # the server listens on loopback, and answers to no other name
    body_bytes: int = 8 << 20  # of one request
    requests: int = 256  # that are read, wait or run at once
    open_paths: Collection[str] = ()  # answered without a token
    busy: int = 503  # status that sends a client away to try again
    describe: Callable[[Refused, str], JsonObject] = describe_refusal  # in the form of the protocol


class Guard:
    """An ASGI application around another one."""

    def __init__(self, inner: Application, rules: Rules) -> None:
        self.inner, self.rules = inner, rules
        self._requests = 0
        self._bytes = 0  # of bodies that are held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._socket(scope, receive, send)
            return
        started = False

        async def note_and_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._admit(scope, receive, note_and_send)
        except Refused as refused:
            await self._refuse(scope, send, refused)
        except asyncio.CancelledError:  # the server ends and waits for nobody
            if not started:
                await self._refuse(scope, send, Refused(503, "the server ends"))

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        content = json.dumps(self.rules.describe(refused, scope["path"])).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            (b"connection", b"close"),  # what is left of its body is not read
        ]
        if refused.status in (429, 503, 504):
            headers.append((b"retry-after", b"1"))
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        start = {"type": "http.response.start", "status": refused.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": content})

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a WebSocket, and whatever else ASGI may have: by the same rules, or close it."""
        try:
            self._check(scope)
        except Refused:
            await receive()  # that it wants to connect
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        await self.inner(scope, receive, send)

    def _check(self, scope: Scope) -> dict[str, str]:
        """Return the headers of one who may ask. Raises Refused."""
        headers = {name.decode("latin-1"): value for name, value in reversed(scope["headers"])}
        fields = {name: value.decode("latin-1") for name, value in headers.items()}
        _check_page(fields, local=self.rules.local)
        if scope["path"] not in self.rules.open_paths:
            _check_token(fields, self.rules.token)
        return fields

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._check(scope)
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            await self.inner(scope, receive, send)
            return
        _check_type(headers)
        size = headers.get("content-length", "")
        if size.isdecimal() and int(size) > self.rules.body_bytes:
            raise self._too_large()
        if self._requests >= self.rules.requests:
            raise Refused(self.rules.busy, "too many requests wait; try again")
        self._requests += 1
        body = bytearray()
        try:
            if await self._read(receive, body):
                await self.inner(scope, self._hand_over(body, receive), send)
        finally:
            self._requests -= 1
            self._release(body)

    def _hand_over(self, body: bytearray, receive: Receive) -> Receive:
        """Return the body as one message, then whatever else comes: that the client leaves.

        From then on it counts no more, because the application frees it when it has parsed it.
        """
        is_handed_over = False

        async def receive_body() -> Message:
            nonlocal is_handed_over
            if is_handed_over:
                return await receive()
            is_handed_over = True
            content = bytes(body)
            self._release(body)
            return {"type": "http.request", "body": content, "more_body": False}

        return receive_body

    def _release(self, body: bytearray) -> None:
        self._bytes -= len(body)
        body.clear()

    async def _read(self, receive: Receive, body: bytearray) -> bool:
        """Return whether the client stayed until its body was there."""
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    chunk = message.get("body", b"")
                    if len(body) + len(chunk) > self.rules.body_bytes:
                        raise self._too_large()
                    if self._bytes + len(chunk) > HELD * self.rules.body_bytes:
                        raise Refused(self.rules.busy, "too many large requests; try again")
                    body += chunk
                    self._bytes += len(chunk)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError as error:
            error_text = f"the request's body did not come within {BODY_S:g} s"
            raise Refused(408, error_text) from error

    def _too_large(self) -> Refused:
        return Refused(413, f"a request may have {self.rules.body_bytes} bytes")


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Return the result of `work`, which is cancelled when the client leaves before that."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refused(499, "the client has left")
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def is_local(host: str) -> bool:
    """Return whether an address is of loopback alone: 127.0.0.1, ::1, localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _check_page(said: dict[str, str], *, local: bool) -> None:
    """Refuse pages of a browser, unless they are the server's own.

    A page of any site can send requests to loopback. Its own name, or one that its owner lets
    point to loopback for that moment, then stands in the request's head.
    """
    host = _address_field(f"//{said.get('host', '')}", "hostname")
    if local and host and not is_local(host):
        raise Refused(403, f"this server is local and does not answer to the name {host!r}")
    origin = said.get("origin")
    if origin is not None and _address_field(origin, "netloc") != said.get("host"):
        raise Refused(403, "pages of other sites may not ask this server")
    if said.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Refused(403, "pages of other sites may not ask this server")


def _address_field(address: str, name: str) -> str:
    """Return a field of an address; raises Refused if it is no address, such as `[::1`."""
    try:
        return getattr(urlsplit(address), name) or ""
    except ValueError as error:
        raise Refused(400, "Host and Origin must be addresses") from error


def _check_token(fields: Mapping[str, str], token: str) -> None:
    """Refuse a request without the token in one of the headers in which clients send keys."""
    if not token:
        return
    if not any(hmac.compare_digest(key, token.encode()) for key in sent_keys(fields)):
        raise Refused(401, "this server asks for a bearer token")


def sent_keys(fields: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the keys of a request: `Bearer KEY`, `Basic` with it as the password, which any client
    takes from its URL, `x-api-key` of Anthropic and `x-goog-api-key` of Google.
    """
    kind, _, credentials = fields.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        yield credentials.strip().encode("latin-1")
    if kind.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            yield base64.b64decode(credentials, validate=True).partition(b":")[2]
    for name in KEY_HEADERS:
        if name in fields:
            yield fields[name].strip().encode("latin-1")


def _check_type(said: dict[str, str]) -> None:
    """Require JSON, which a page of another site cannot send unasked, or no type at all."""
    kind = said.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Refused(415, "send the header Content-Type: application/json")


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
