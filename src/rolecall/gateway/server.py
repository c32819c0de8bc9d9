"""Serves the doors of all episodes of a process at one address of this machine."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from rolecall.agents.team import Team
from rolecall.core.errors import InfrastructureError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.gateway import chat
from rolecall.gateway.reply import Reply
from rolecall.gateway.request import ForeignRequest, RequestError
from rolecall.gateway.session import Session, SessionLimits
from rolecall.runtime.call_tree import outside
from rolecall.serve.binding import settings
from rolecall.serve.guard import Guard, Refused, Rules, sent_keys

with needs("fastapi", extra="serve"):
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse

HOST = "127.0.0.1"
BODY_BYTES = 32 << 20  # of one request
MOST_REQUESTS = 4096  # of all episodes together
PING_S = 10.0  # between two signs of life of a stream that waits for its answer
RETRY_COUNT = "x-stainless-retry-count"  # of the SDKs of OpenAI and Anthropic
NOT_RETRIED = {"x-should-retry": "false"}


class Gateway:
    """Answers the requests of programs by the session that their key opens."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}  # by key
        self._over: dict[str, None] = {}  # keys of episodes that are over, the oldest first
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.address = ""  # http://127.0.0.1:PORT

    async def start(self) -> None:
        """Listen on a free port of loopback; the second call does nothing."""
        async with self._starting:
            if self._serving is not None:
                return
            listener = socket.create_server((HOST, 0))
            self.address = f"http://{HOST}:{listener.getsockname()[1]}"
            self._server = _Server(settings(self.make_app(), log_config=None))
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

    def make_app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(title="rolecall gateway", openapi_url=None)
        rules = Rules(
            body_bytes=BODY_BYTES, requests=MOST_REQUESTS, busy=429, describe=_describe_refusal
        )
        app.add_middleware(Guard, rules)
        for prefix in ("/v1", "/agents/{agent}/v1"):
            app.add_route(f"{prefix}/chat/completions", self.answer_chat, methods=["POST"])
            app.add_route(f"{prefix}/models", self.list_models)
        return app

    async def answer_chat(self, request: Request) -> Response:
        try:
            session = self._session(request)
            chat_request = chat.read_request(await _read_json(request))
            answering = asyncio.ensure_future(
                session.answer(
                    request.path_params.get("agent", ""),
                    chat_request,
                    is_retry=request.headers.get(RETRY_COUNT, "0") != "0",
                )
            )
            if chat_request.is_streamed:
                return await self._stream(answering, chat_request)
            return JSONResponse(chat.write_reply(await answering, chat_request))
        except RequestError as error:
            return _refuse(error)

    async def list_models(self, request: Request) -> Response:
        """Answer with the agents of the episode."""
        try:
            names = self._session(request).team.names
        except RequestError as error:
            return _refuse(error)
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "rolecall"}
                  for name in names]  # fmt: skip
        return JSONResponse({"object": "list", "data": models})

    def _session(self, request: Request) -> Session:
        keys = [key.decode("latin-1") for key in sent_keys(request.headers)]
        for key in keys:
            if session := self._sessions.get(key):
                return session
        if any(key in self._over for key in keys):
            raise RequestError(410, "the episode is over", code="episode_over")
        message = "the key of no episode that is being played; use OPENAI_API_KEY as it is set"
        raise RequestError(401, message, code="invalid_api_key")

    async def _stream(
        self, answering: asyncio.Future[Reply], chat_request: ForeignRequest
    ) -> Response:
        """Return the whole answer as events, and signs of life until it is there."""
        await asyncio.wait({answering}, timeout=PING_S)
        if answering.done():  # an error that comes at once has a status of its own
            events = chat.write_events(answering.result(), chat_request)
            return StreamingResponse(_as_stream(events), media_type="text/event-stream")

        async def stream() -> AsyncIterator[str]:
            while not answering.done():
                yield ": waiting\n\n"
                await asyncio.wait({answering}, timeout=PING_S)
            try:
                for event in chat.write_events(answering.result(), chat_request):
                    yield event
            except RequestError as error:
                yield chat.write_event(chat.write_error(error))

        return StreamingResponse(stream(), media_type="text/event-stream")


class _Server(uvicorn.Server):
    """A server inside of a run, which handles the signals itself."""

    def capture_signals(self) -> Any:
        return nullcontext()


async def _as_stream(events: Iterator[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


async def _read_json(request: Request) -> JsonObject:
    try:
        body = await request.json()
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body is not a JSON object")
    return body


def _describe_refusal(refused: Refused) -> JsonObject:
    return chat.write_error(RequestError(refused.status, refused.told))


def _refuse(error: RequestError) -> JSONResponse:
    headers = {"retry-after": "1"} if error.status == 429 else NOT_RETRIED
    return JSONResponse(chat.write_error(error), status_code=error.status, headers=headers)
