"""Reads the JSON body of a request into a model of pydantic."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rolecall.core.optional import needs

with needs("fastapi", extra="serve"):
    from fastapi import HTTPException, Request

Body = TypeVar("Body", bound=BaseModel)

PARSED_AT_ONCE = 1 << 16  # bytes; a longer body is parsed in a thread


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Return the body of a request, whose bytes are freed when they are parsed.

    Raises HTTPException with status 422 for what is no such body. NaN and half of a surrogate pair
    are no values of JSON, as pydantic reads it.
    """
    content = b"".join([chunk async for chunk in request.stream()])
    try:
        if len(content) <= PARSED_AT_ONCE:
            return kind.model_validate_json(content)
        return await asyncio.to_thread(kind.model_validate_json, content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        raise HTTPException(422, errors) from error
