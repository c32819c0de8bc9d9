"""Lets only this machine's own page, or one with a token, ask the server of `rolecall watch`."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from rolecall.serve.guard import (
    Application,
    Message,
    Receive,
    Refused,
    Scope,
    Send,
    describe_refusal,
    is_local,
    sent_keys,
)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
# The cookie is not sent along with a page that another site leads to; one that reloads itself is
# this site's own.
ENTRANCE = b"""<!doctype html><meta charset="utf-8"><title>rolecall watch</title>
<meta http-equiv="refresh" content="0;url=/"><p><a href="/">Open the page</a></p>
"""
BODY_BYTES = 1 << 20  # of a request


class Tokens:
    """The token of a server that others can reach: good for one link, then for a cookie.

    Every link can be used once, so one that is left in a history opens nothing; after each use
    `say` gets the next link's token. Programs send the first token as a bearer token.
    """

    def __init__(self, token: str, *, say: Callable[[str], None]) -> None:
        self.token, self.say = token, say
        self._link = token
        self._cookies: set[str] = set()
        self._lock = threading.Lock()

    def open_link(self, token: str) -> str:
        """Return the cookie for a link's token; raises Refused for one that is used or wrong."""
        with self._lock:
            if not self._link or not _equal(token, self._link):
                raise Refused(
                    403,
                    "this link was used already or is wrong; the terminal of `rolecall watch` "
                    "shows the next one",
                )
            cookie, self._link = secrets.token_urlsafe(32), secrets.token_urlsafe(16)
            self._cookies.add(cookie)
        self.say(self._link)
        return cookie

    def allows(self, headers: dict[str, str], cookie_name: str) -> bool:
        """Return whether a request has the cookie of a link, or the token itself."""
        cookie = _read_cookie(headers.get("cookie", ""), cookie_name)
        if cookie and any(_equal(cookie, known_cookie) for known_cookie in self._cookies):
            return True
        return any(hmac.compare_digest(key, self.token.encode()) for key in sent_keys(headers))


class Guard:
    """An ASGI application around the server's."""

    def __init__(self, inner: Application, *, host: str, tokens: Tokens | None = None) -> None:
        self.inner, self.host, self.tokens = inner, host, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        try:
            headers = read_headers(scope)
            self._check_host(headers)
            check_site(scope, headers)
            if await self._enter(scope, headers, send_guarded):
                return
            check_body(scope, headers)
        except Refused as refused:
            await _answer(send_guarded, refused.status, describe_refusal(refused, scope["path"]))
            return
        await self.inner(scope, receive, send_guarded)

    def _check_host(self, headers: dict[str, str]) -> None:
        """Refuse other names than those of this server.

        A page of any site can have its own name point to this machine for a moment; a browser then
        sends that name. It cannot do so with an address.
        """
        name = read_host(headers.get("host", ""))
        if is_local(name) or (not is_local(self.host) and _is_address(name)):
            return
        if name and name == self.host.lower():
            return
        raise Refused(421, f"this server does not answer to the name {name!r}")

    async def _enter(self, scope: Scope, headers: dict[str, str], send: Send) -> bool:
        """Return whether a link with a token is answered; raises Refused without a token."""
        if self.tokens is None:
            return False
        cookie_name = f"rolecall-watch-{(scope.get('server') or ('', 0))[1]}"
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if scope["method"] == "GET" and "token" in query and not _is_api(scope):
            cookie = self.tokens.open_link(query["token"][0])
            value = f"{cookie_name}={cookie}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send, 200, ENTRANCE, (b"set-cookie", value.encode()))
            return True
        if not self.tokens.allows(headers, cookie_name):
            raise Refused(
                401,
                "this server asks for a token; open the link that the terminal of `rolecall "
                "watch` shows",
            )
        return False


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request; raises Refused where Host or Origin stand there twice."""
    fields: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in fields and name in ("host", "origin", "content-length"):
            raise Refused(400, f"the header {name} stands there twice")
        fields.setdefault(name, value.decode("latin-1"))
    return fields


def read_host(host: str) -> str:
    """Return the name or address in a Host header; raises Refused for any other text."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise Refused(400, "the header Host must be a name or an address") from error
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        raise Refused(400, "the header Host must be a name or an address")
    return name.rstrip(".").lower()


def check_site(scope: Scope, headers: dict[str, str]) -> None:
    """Refuse requests of other sites' pages; a link to a page, which holds no data, may be theirs.

    Raises Refused.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise Refused(403, "pages of other sites may not ask this server")
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return
    opens_page = (
        scope["method"] == "GET"
        and not _is_api(scope)
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
    if not opens_page:
        raise Refused(403, "pages of other sites may not ask this server")


def check_body(scope: Scope, headers: dict[str, str]) -> None:
    """Require JSON of a limited length, which a form of another site cannot send.

    Raises Refused.
    """
    if scope["method"] in ("GET", "HEAD"):
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "send the header Content-Type: application/json")
    size = headers.get("content-length", "")
    if not size.isdecimal():
        raise Refused(411, "send the header Content-Length")
    if int(size) > BODY_BYTES:
        raise Refused(413, f"a request may have {BODY_BYTES} bytes")


def _is_api(scope: Scope) -> bool:
    return str(scope["path"]).startswith("/api")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _read_cookie(header: str, name: str) -> str:
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


async def _answer(
    send: Send, status: int, content: bytes | dict[str, str], *headers: tuple[bytes, bytes]
) -> None:
    is_page = isinstance(content, bytes)
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    kind = b"text/html; charset=utf-8" if is_page else b"application/json"
    fields = [
        (b"content-type", kind),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
