"""Answers HTTP requests in the protocols of OpenAI, Anthropic and Google."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Protocol

from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.gateway.dialects import chat, generate_content, messages, responses
from rolecall.gateway.dialects.base import Dialect
from rolecall.gateway.dialects.reply import Reply
from rolecall.gateway.dialects.request import ForeignRequest, RequestError
from rolecall.serve.guard import Guard, Refused, Rules

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse
    from starlette.exceptions import HTTPException

PING_S = 10.0  # between two signs of life of a stream that waits for its answer
RETRY_COUNT = "x-stainless-retry-count"  # of the SDKs of OpenAI and Anthropic
NOT_RETRIED = {"x-should-retry": "false"}
# By the end of their addresses: what is asked there for a reply, and for the length of a prompt.
REPLIES: dict[str, Dialect] = {
    "chat/completions": chat,
    "responses": responses,
    "messages": messages,
}
COUNTS: dict[str, Dialect] = {
    "responses/input_tokens": responses,
    "messages/count_tokens": messages,
}
# Methods of Google's models, which follow the name of the model and a colon.
REPLY, STREAMED_REPLY, COUNT = "generateContent", "streamGenerateContent", "countTokens"


class Answerer(Protocol):
    """Answers requests, whatever protocol they came in."""

    @property
    def names(self) -> list[str]:
        """The models that a request can name."""
        ...

    async def answer(
        self, agent: str, request: ForeignRequest, *, body_digest: str = "", is_retry: bool = False
    ) -> Sequence[Reply]:
        """Return the replies to a request; raises RequestError."""
        ...

    async def count_tokens(self, agent: str, request: ForeignRequest) -> int:
        """Return the length of a request's prompt; raises RequestError."""
        ...


def make_app(find: Callable[[Request], Answerer], rules: Rules, prefixes: Iterable[str]) -> FastAPI:
    """Return the application.

    `find`: returns who answers a request, or raises RequestError; `prefixes`: of its addresses,
    such as `/v1`, in which `{agent}` names an agent.
    """
    app = FastAPI(title="rolecall gateway", openapi_url=None)
    app.add_middleware(Guard, rules)
    app.add_exception_handler(HTTPException, _describe_http_error)
    app.add_exception_handler(Exception, _describe_bug)
    doors = Doors(find)
    for prefix in prefixes:
        for path, dialect in REPLIES.items():
            app.add_route(f"{prefix}/{path}", partial(doors.answer, dialect), methods=["POST"])
        for path, dialect in COUNTS.items():
            app.add_route(f"{prefix}/{path}", partial(doors.count, dialect), methods=["POST"])
        app.add_route(f"{prefix}/models", doors.list_models)
        app.add_route(f"{prefix}/models/{{call}}", doors.call_model, methods=["POST"])
    return app


def choose_dialect(path: str) -> Dialect:
    """Return the protocol in which errors of an address are told."""
    for end, dialect in (REPLIES | COUNTS).items():
        if path.endswith(f"/{end}"):
            return dialect
    return generate_content if "/models/" in path else chat


def describe_refusal(refused: Refused, path: str) -> JsonObject:
    """Return the body of what the guard refuses."""
    return choose_dialect(path).write_error(RequestError(refused.status, refused.told))


class Doors:
    """Handles requests for whoever answers them."""

    def __init__(self, find: Callable[[Request], Answerer]) -> None:
        self._find = find

    async def answer(self, dialect: Dialect, request: Request) -> Response:
        """Answer with replies."""
        try:
            body, body_digest = await read_body(request)
            return await self._reply(dialect, request, body, body_digest)
        except RequestError as error:
            return refuse(dialect, error)

    async def count(self, dialect: Dialect, request: Request) -> Response:
        """Answer with the length of a prompt."""
        try:
            body, _ = await read_body(request)
            return await self._count(dialect, request, body)
        except RequestError as error:
            return refuse(dialect, error)

    async def call_model(self, request: Request) -> Response:
        """Answer a request in Google's form, `models/NAME:METHOD`."""
        name, _, method = str(request.path_params["call"]).rpartition(":")
        try:
            body, body_digest = await read_body(request)
            if method == COUNT:
                # What is counted stands there alone, or as the request that it would be.
                body = body.get("generateContentRequest", body) | {"model": name}
                return await self._count(generate_content, request, body)
            if method not in (REPLY, STREAMED_REPLY):
                message = (
                    f"models have no method {method!r}; use {REPLY}, {STREAMED_REPLY}, {COUNT}"
                )
                raise RequestError(404, message)
            body |= {"model": name, "stream": method == STREAMED_REPLY}
            return await self._reply(generate_content, request, body, body_digest)
        except RequestError as error:
            return refuse(generate_content, error)

    async def list_models(self, request: Request) -> Response:
        """Answer with the models, in a form that clients of all protocols read."""
        try:
            names = self._find(request).names
        except RequestError as error:
            return refuse(chat, error)
        data = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "rolecall",
                "type": "model",
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
            }
            for name in names
        ]
        google = [
            {"name": f"models/{name}", "supportedGenerationMethods": [REPLY, COUNT]}
            for name in names
        ]
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
        listed = {"object": "list", "data": data, "has_more": False, "models": google} | ends
        return JSONResponse(listed)

    async def _count(self, dialect: Dialect, request: Request, body: JsonObject) -> Response:
        read = dialect.read_request(body)
        tokens = await self._find(request).count_tokens(_read_agent(request), read)
        return JSONResponse(dialect.write_token_count(tokens))

    async def _reply(
        self, dialect: Dialect, request: Request, body: JsonObject, body_digest: str
    ) -> Response:
        answerer = self._find(request)
        read = dialect.read_request(body)
        is_retry = request.headers.get(RETRY_COUNT, "0") != "0"
        answering = asyncio.ensure_future(
            answerer.answer(_read_agent(request), read, body_digest=body_digest, is_retry=is_retry)
        )
        if not read.is_streamed:
            return JSONResponse(dialect.write_reply(await answering, read))
        await asyncio.wait({answering}, timeout=PING_S)
        if answering.done():
            answering.result()  # an error that comes at once has a status of its own
        return StreamingResponse(_stream(dialect, answering, read), media_type="text/event-stream")


async def _stream(
    dialect: Dialect, answering: asyncio.Future[Sequence[Reply]], request: ForeignRequest
) -> AsyncIterator[str]:
    """Yield the whole answer as events, and signs of life until it is there."""
    while not answering.done():
        yield ": waiting\n\n"
        await asyncio.wait({answering}, timeout=PING_S)
    try:
        for event in dialect.write_events(answering.result(), request):
            yield event
    except RequestError as error:
        yield dialect.write_error_event(error)


def _read_agent(request: Request) -> str:
    return str(request.path_params.get("agent", ""))


async def read_body(request: Request) -> tuple[JsonObject, str]:
    """Return a body, and a digest of its bytes; raises RequestError.

    NaN and half of a surrogate pair are no values of JSON, and no tokenizer reads the latter.
    """
    content = await request.body()
    try:
        body = json.loads(content, parse_constant=_refuse_constant)
        if b"\\u" in content:
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(400, "the body is not a JSON object")
    return body, sha256(content).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


def refuse(dialect: Dialect, error: RequestError) -> JSONResponse:
    """Return an error as a response of a protocol."""
    headers = {"retry-after": "1"} if error.status == 429 else NOT_RETRIED
    return JSONResponse(dialect.write_error(error), status_code=error.status, headers=headers)


async def _describe_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these alone"
    message = f"{request.method} {request.url.path} is not answered here"
    return refuse(choose_dialect(request.url.path), RequestError(error.status_code, message))


async def _describe_bug(request: Request, error: Exception) -> Response:
    message = f"the server failed: {type(error).__name__}"
    return refuse(choose_dialect(request.url.path), RequestError(500, message))
