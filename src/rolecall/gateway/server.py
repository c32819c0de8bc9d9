"""Serves the doors of all episodes of a process at one address of this machine."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from rolecall.agents.team import Team
from rolecall.core.errors import InfrastructureError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.gateway.dialects import chat
from rolecall.gateway.dialects.request import RequestError
from rolecall.gateway.routes import describe_refusal, make_app, read_body, refuse
from rolecall.gateway.session import Session, SessionLimits
from rolecall.runtime.call_tree import outside
from rolecall.serve.binding import settings
from rolecall.serve.guard import Rules, sent_keys

with needs("fastapi", extra="serve"):
    import uvicorn
    from fastapi import Request
    from fastapi.responses import JSONResponse, Response

HOST = "127.0.0.1"
BODY_BYTES = 32 << 20  # of one request
MOST_REQUESTS = 4096  # of all episodes together
# Clients that set no key of an episode are told an address with it.
PREFIXES = [
    f"{episode}{agent}/{version}"
    for episode in ("", "/rollouts/{key}")
    for agent in ("", "/agents/{agent}")
    for version in ("v1", "v1beta")
]


class Gateway:
    """Answers the requests of programs by the session that their key opens."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}  # by key
        self._over: dict[str, None] = {}  # keys of episodes that are over, the oldest first
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._starting = asyncio.Lock()
        self.address = ""  # http://127.0.0.1:PORT

    async def start(self) -> None:
        """Listen on a free port of loopback; the second call does nothing."""
        async with self._starting:
            if self._serving is not None:
                return
            listener = self._listener = socket.create_server((HOST, 0))
            self.address = f"http://{HOST}:{listener.getsockname()[1]}"
            rules = Rules(
                body_bytes=BODY_BYTES, requests=MOST_REQUESTS, busy=429, describe=describe_refusal
            )
            app = make_app(self._find, rules, PREFIXES)
            app.add_route("/rollouts/{key}/reward", self.take_reward, methods=["POST"])
            app.add_route("/rollouts/{key}/finish", self.finish, methods=["POST"])
            self._server = _Server(settings(app, log_config=None, lifespan="off"))
            self._serving = outside(self._server.serve([listener]))
            while not self._server.started:
                if self._serving.done():
                    raise InfrastructureError("the gateway could not be started")
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """End the server."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        self._server = self._serving = None
        self.release()

    def release(self) -> None:
        """Close the port; all that there is to do once the event loop is closed."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None

    @asynccontextmanager
    async def open(self, team: Team, *, limits: SessionLimits) -> AsyncIterator[Session]:
        """Open a session for an episode, which ends with the block."""
        await self.start()
        session = Session(team, key=secrets.token_urlsafe(24), limits=limits)
        self._sessions[session.key] = session
        try:
            yield session
        finally:
            del self._sessions[session.key]
            self._over[session.key] = None
            while len(self._over) > MOST_REQUESTS:
                self._over.pop(next(iter(self._over)))
            await session.close()

    async def take_reward(self, request: Request) -> Response:
        """Note the rewards of an episode."""
        return await self._take_outcome(request, Session.take_outcome)

    async def finish(self, request: Request) -> Response:
        """End an episode whose program listens at an address of its own."""
        return await self._take_outcome(request, Session.finish)

    async def _take_outcome(
        self, request: Request, take: Callable[[Session, JsonObject], object]
    ) -> Response:
        try:
            session = self._find(request)
            body, _ = await read_body(request)
            try:
                take(session, body)
            except ValueError as error:
                raise RequestError(400, str(error)) from error
        except RequestError as error:
            return refuse(chat, error)
        return JSONResponse({})

    def _find(self, request: Request) -> Session:
        """Return the session of a request; raises RequestError.

        A key in the address counts more than one in the head, which some frameworks set for all
        that they ask.
        """
        named = request.path_params.get("key")
        keys = [named] if named else [key.decode("latin-1") for key in sent_keys(request.headers)]
        for key in keys:
            if session := self._sessions.get(key):
                return session
        if any(key in self._over for key in keys):
            raise RequestError(410, "the episode is over", code="episode_over")
        if named:
            raise RequestError(404, "the address names no episode that is being played")
        message = "the key of no episode that is being played; use OPENAI_API_KEY as it is set"
        raise RequestError(401, message, code="invalid_api_key")


class _Server(uvicorn.Server):
    """A server inside of a run, which handles the signals itself."""

    def capture_signals(self) -> Any:
        return nullcontext()
