"""Reads and writes Anthropic's messages, which are lists of blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from rolecall.core.json_types import JsonObject
from rolecall.gateway.dialects.base import join_texts, parse, refuse, write_event
from rolecall.gateway.dialects.reply import Reply
from rolecall.gateway.dialects.request import (
    ForeignMessage,
    ForeignRequest,
    RequestError,
    ToolCall,
    ToolChoice,
    program_tool,
)

SAMPLING = ("temperature", "top_p", "top_k")
CHOICES: dict[str, ToolChoice] = {"auto": "auto", "none": "none"}  # others demand a call
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def list_blocks(content: Any) -> Any:
    """Return content as a list of blocks; a text is one of them."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def join_blocks(content: Any) -> str:
    """Return content as one text; raises ValueError for images and documents."""
    return "" if content is None else join_texts(list_blocks(content), ("text",))


Blocks = Annotated[list[JsonObject], BeforeValidator(list_blocks)]


class InputMessage(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: Blocks


class InputTool(BaseModel):
    type: str | None = None
    name: str
    description: str | None = None
    input_schema: JsonObject | None = None


class OutputFormat(BaseModel):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(default_factory=dict, alias="schema")


class OutputOptions(BaseModel):
    format: OutputFormat | None = None


class MessagesRequest(BaseModel):
    """The fields that are read; others, such as `thinking` and `metadata`, are passed over."""

    model: str
    messages: list[InputMessage] = Field(min_length=1)
    system: Annotated[str, BeforeValidator(join_blocks)] = ""
    max_tokens: int | None = Field(None, ge=1)
    tools: list[InputTool] | None = None
    tool_choice: JsonObject | None = None
    stop_sequences: list[str] | None = None
    output_config: OutputOptions | None = None
    stream: bool | None = None


def read_request(body: JsonObject) -> ForeignRequest:
    """Return what the body of `POST /messages` asks; raises RequestError."""
    fields = parse(MessagesRequest, body)
    for number, tool in enumerate(fields.tools or []):
        if tool.type not in (None, "custom"):
            reason = f"{tool.type!r} is no tool of an agent; offer tools that you run yourself"
            raise refuse(f"tools.{number}.type", reason)
    choice: ToolChoice = "auto"
    if fields.tool_choice is not None:
        choice = CHOICES.get(str(fields.tool_choice.get("type")), "required")
    format = fields.output_config.format if fields.output_config is not None else None
    return ForeignRequest(
        model=fields.model,
        messages=tuple(
            read
            for number, message in enumerate(fields.messages)
            for read in _read_message(message, number)
        ),
        body=body,
        instructions=fields.system,
        tools=tuple(
            program_tool(tool.name, tool.description, tool.input_schema)
            for tool in fields.tools or []
        ),
        tool_choice=choice,
        max_tokens=fields.max_tokens,
        stop=tuple(text for text in fields.stop_sequences or [] if text),
        schema=None if format is None else format.schema_,
        is_streamed=bool(fields.stream),
        unused={name: body[name] for name in SAMPLING if body.get(name) is not None},
    )


def write_reply(replies: Sequence[Reply], request: ForeignRequest) -> JsonObject:
    """Return the body of the answer."""
    [reply] = replies
    return _frame(reply, request) | {
        "content": list(_write_blocks(reply)),
        "stop_reason": "stop_sequence" if reply.stop_text else STOP_REASONS[reply.finish],
        "stop_sequence": reply.stop_text or None,
    }


def write_events(replies: Sequence[Reply], request: ForeignRequest) -> Iterator[str]:
    """Yield the answer as server-sent events."""
    for event in _list_events(replies, request):
        yield write_event(event, name=event["type"])


def write_error(error: RequestError) -> JsonObject:
    """Return the body of an error."""
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    message = str(error)
    if error.code == "context_length_exceeded":  # the words by which clients know this error
        message = f"prompt is too long: {message}"
    return {
        "type": "error",
        "error": {"type": ERROR_TYPES.get(error.status, kind), "message": message},
    }


def write_error_event(error: RequestError) -> str:
    """Return an error for a stream that has begun."""
    return write_event(write_error(error), name="error")


def write_token_count(tokens: int) -> JsonObject:
    """Return the body that tells how long a prompt is."""
    return {"input_tokens": tokens}


def _read_message(message: InputMessage, number: int) -> Iterator[ForeignMessage]:
    """Yield the results of tools first, then the words and calls."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(message.content):
        parameter = f"messages.{number}.content.{index}"
        kind = block.get("type")
        if kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(ToolCall(str(block.get("id", "")), str(block.get("name", "")), arguments))
        elif kind == "tool_result":
            text, call_id = _join(block.get("content"), parameter), str(block.get("tool_use_id"))
            yield ForeignMessage("tool", text, call_id=call_id)
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(_join([block], parameter))
    if texts or calls:
        yield ForeignMessage(message.role, "\n".join(texts), tuple(calls))


def _join(content: Any, parameter: str) -> str:
    try:
        return join_blocks(content)
    except ValueError as error:
        raise RequestError(400, f"{parameter}: {error}", parameter=parameter) from error


def _frame(reply: Reply, request: ForeignRequest) -> JsonObject:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "output_tokens": reply.sampled_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def _write_blocks(reply: Reply) -> Iterator[JsonObject]:
    message = reply.message
    if reply.thought:
        yield {"type": "thinking", "thinking": reply.thought, "signature": reply.id}
    if message.text or not message.calls:
        yield {"type": "text", "text": message.text}
    for call in message.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments_object}


def _list_events(replies: Sequence[Reply], request: ForeignRequest) -> Iterator[JsonObject]:
    [reply] = replies
    yield {"type": "message_start", "message": _frame(reply, request)}
    for index, block in enumerate(_write_blocks(reply)):
        empty, deltas = _split(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    whole = write_reply(replies, request)
    ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    usage = {"output_tokens": reply.sampled_tokens}
    yield {"type": "message_delta", "delta": ending, "usage": usage}
    yield {"type": "message_stop"}


def _split(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Return a block as a stream begins it, and the deltas that fill it."""
    if block["type"] == "tool_use":
        arguments = json.dumps(block["input"], ensure_ascii=False)
        return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return block | {"thinking": "", "signature": ""}, [thought, signature]
    return block | {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
