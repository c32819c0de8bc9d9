"""Declares what a protocol translates, and holds what several of them share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from rolecall.core.json_types import JsonObject
from rolecall.gateway.dialects.reply import Reply
from rolecall.gateway.dialects.request import ForeignRequest, RequestError

Body = TypeVar("Body", bound=BaseModel)
MOST_REPLIES = 16  # to one request


class Dialect(Protocol):
    """One protocol; the modules beside this one are its implementations."""

    def read_request(self, body: JsonObject) -> ForeignRequest:
        """Return what a body asks; raises RequestError."""
        ...

    def write_reply(self, replies: Sequence[Reply], request: ForeignRequest) -> JsonObject:
        """Return the body of the answer."""
        ...

    def write_events(self, replies: Sequence[Reply], request: ForeignRequest) -> Iterator[str]:
        """Yield the answer as server-sent events."""
        ...

    def write_error(self, error: RequestError) -> JsonObject:
        """Return the body of an error."""
        ...

    def write_error_event(self, error: RequestError) -> str:
        """Return an error for a stream that has begun."""
        ...

    def write_token_count(self, tokens: int) -> JsonObject:
        """Return the body that tells how long a prompt is."""
        ...


def parse(kind: type[Body], body: JsonObject) -> Body:
    """Return the fields of a body; raises RequestError with the first that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parameter = ".".join(map(str, first["loc"]))
        raise RequestError(400, f"{parameter}: {first['msg']}", parameter=parameter) from error


def refuse(parameter: str, reason: str) -> RequestError:
    """Return the error for what no agent can do."""
    message = f"{parameter}: {reason}"
    return RequestError(400, message, code="unsupported_parameter", parameter=parameter)


def check_number(number: int | None, parameter: str) -> int:
    """Return how many replies are asked for; raises RequestError if too many."""
    if number is not None and number > MOST_REPLIES:
        raise refuse(parameter, f"{number} replies to one request; ask for {MOST_REPLIES} at most")
    return number or 1


def join_texts(items: Any, kinds: Sequence[str]) -> str:
    """Return the texts of content parts as one; raises ValueError for images and audio.

    `kinds`: the types that hold text, in a field `text` or of the type's own name.
    """
    if not isinstance(items, list | tuple):
        raise ValueError("content is a text or a list of parts")
    texts = []
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in kinds:
            raise ValueError(f"content of the type {kind!r}: this model reads texts")
        texts.append(str(item.get("text") or item.get(kind) or ""))
    return "\n".join(texts)


def write_event(data: JsonObject, *, name: str = "") -> str:
    """Return one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n"
