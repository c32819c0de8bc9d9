"""Reads and writes OpenAI's responses, whose messages and calls are items of one list."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, Field

from rolecall.core.json_types import JsonObject
from rolecall.gateway.dialects import chat
from rolecall.gateway.dialects.base import join_texts, parse, refuse, write_event
from rolecall.gateway.dialects.reply import Reply, reply_of_call
from rolecall.gateway.dialects.request import (
    ForeignMessage,
    ForeignRequest,
    RequestError,
    Role,
    ToolCall,
    ToolChoice,
    program_tool,
)

TEXTS = ("input_text", "output_text", "text", "refusal")
SAMPLING = ("temperature", "top_p", "seed")
LOGPROBS = "message.output_text.logprobs"  # in `include`
# Parts of the request that the answer repeats, and their values where the request has none.
REPEATED: JsonObject = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}

write_error = chat.write_error


class TextFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema_: JsonObject = Field(default_factory=dict, alias="schema")


class TextOptions(BaseModel):
    format: TextFormat | None = None


class ResponseTool(BaseModel):
    type: str
    name: str = ""
    description: str | None = None
    parameters: JsonObject | None = None


class ResponsesRequest(BaseModel):
    """The fields that are read; others, such as `store` and `truncation`, are passed over."""

    model: str
    input: str | list[JsonObject]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | JsonObject | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    stream: bool | None = None


@dataclass(slots=True)
class _Spoken:
    """Collects the items of one answer of an assistant."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


def read_request(body: JsonObject) -> ForeignRequest:
    """Return what the body of `POST /responses` asks; raises RequestError."""
    fields = parse(ResponsesRequest, body)
    _check_supported(fields)
    tools = fields.tools or []
    choice: ToolChoice = chat.read_choice(fields.tool_choice)
    format = fields.text.format if fields.text is not None else None
    if isinstance(fields.input, str):
        messages: tuple[ForeignMessage, ...] = (ForeignMessage("user", fields.input),)
    else:
        messages = tuple(_read_items(fields.input))
    if not messages:
        raise RequestError(400, "input: it holds no message", parameter="input")
    return ForeignRequest(
        model=fields.model,
        messages=messages,
        body=body,
        instructions=fields.instructions or "",
        previous=(fields.previous_response_id or "").removeprefix("resp_"),
        tools=tuple(program_tool(tool.name, tool.description, tool.parameters) for tool in tools),
        tool_choice=choice,
        max_tokens=fields.max_output_tokens,
        schema=None if format is None or format.type == "text" else format.schema_,
        wants_logprobs=LOGPROBS in (fields.include or []),
        is_streamed=bool(fields.stream),
        unused={name: body[name] for name in SAMPLING if body.get(name) is not None},
    )


def write_reply(replies: Sequence[Reply], request: ForeignRequest) -> JsonObject:
    """Return the body of the answer."""
    [reply] = replies
    response = _frame(reply, request) | {
        "status": "completed",
        "output": [item for item, _ in _write_items(reply)],
        "usage": _write_usage(reply),
    }
    if reply.finish == "length":
        response |= {
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        }
    return response


def write_events(replies: Sequence[Reply], request: ForeignRequest) -> Iterator[str]:
    """Yield the answer as server-sent events."""
    for number, event in enumerate(_list_events(replies, request)):
        yield write_event(event | {"sequence_number": number}, name=event["type"])


def write_error_event(error: RequestError) -> str:
    """Return an error for a stream that has begun."""
    event = {
        "type": "error",
        "code": error.code or chat.write_error(error)["error"]["type"],
        "message": str(error),
        "param": error.parameter or None,
        "sequence_number": 0,
    }
    return write_event(event, name="error")


def write_token_count(tokens: int) -> JsonObject:
    """Return the body that tells how long a prompt is."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _check_supported(fields: ResponsesRequest) -> None:
    if fields.background:
        raise refuse("background", "an answer is waited for; leave it out")
    if fields.conversation is not None:
        raise refuse("conversation", "send the whole input, or previous_response_id")
    if fields.prompt is not None:
        raise refuse("prompt", "no prompts are stored here; send instructions and input")
    if fields.top_logprobs:
        raise refuse("top_logprobs", "only the log-probs of sampled tokens are known; write 0")
    for number, tool in enumerate(fields.tools or []):
        if tool.type != "function":
            reason = f"{tool.type!r} is no tool of an agent; offer functions, and run them yourself"
            raise refuse(f"tools.{number}.type", reason)


def _read_items(items: Sequence[JsonObject]) -> Iterator[ForeignMessage]:
    """Yield the messages of a list of items.

    The text and the calls of one answer are one message. A call belongs to the reply that its id
    names, even behind the result of an earlier call; one of somebody else belongs to the text or
    call of the assistant before it.
    """
    entries: list[ForeignMessage | _Spoken] = []
    by_reply: dict[str, _Spoken] = {}
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            entry = _read_message(item, number)
            entries.append(entry)
            if isinstance(entry, _Spoken):
                by_reply[str(item.get("id", "")).removeprefix("msg_")] = entry
        elif kind == "function_call":
            call = _read_call(item, number)
            reply_id = reply_of_call(call.id)  # "" for a call of somebody else
            owner = by_reply.get(reply_id) if reply_id else None
            if owner is None and entries and isinstance(entries[-1], _Spoken):
                owner = entries[-1]
            if owner is None:
                owner = _Spoken()
                entries.append(owner)
            by_reply.setdefault(reply_id, owner)
            owner.calls.append(call)
        elif kind == "function_call_output":
            output, call_id = item.get("output"), str(item.get("call_id", ""))
            text = _read_content(output, f"input.{number}.output")
            entries.append(ForeignMessage("tool", text, call_id=call_id))
        elif kind != "reasoning":  # thoughts come back or not, and are not compared
            raise refuse(f"input.{number}.type", f"{kind!r} is no item that an agent can read")
    for entry in entries:
        if isinstance(entry, _Spoken):
            yield ForeignMessage("assistant", entry.text, tuple(entry.calls))
        else:
            yield entry


def _read_message(item: JsonObject, number: int) -> ForeignMessage | _Spoken:
    role: Role | None = chat.ROLES.get(str(item.get("role")))
    if role is None:
        message = f"input.{number}.role: {item.get('role')!r} is no role"
        raise RequestError(400, message, parameter=f"input.{number}.role")
    text = _read_content(item.get("content"), f"input.{number}.content")
    return _Spoken(text) if role == "assistant" else ForeignMessage(role, text)


def _read_call(item: JsonObject, number: int) -> ToolCall:
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str):
        message = f"input.{number}.name: a call has the name of its function"
        raise RequestError(400, message, parameter=f"input.{number}.name")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(str(item.get("call_id", "")), name, text)


def _read_content(content: Any, parameter: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    try:
        return join_texts(content if isinstance(content, list) else [content], TEXTS)
    except ValueError as error:
        raise RequestError(400, f"{parameter}: {error}", parameter=parameter) from error


def _frame(reply: Reply, request: ForeignRequest) -> JsonObject:
    repeated = {
        name: default if request.body.get(name) is None else request.body[name]
        for name, default in REPEATED.items()
    }
    return repeated | {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "error": None,
        "incomplete_details": None,
        "model": request.model,
    }


def _write_items(reply: Reply) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield the items of a reply, each with what a stream shows of it at first."""
    message = reply.message
    if reply.thought:
        item: JsonObject = {"id": f"rs_{reply.id}", "type": "reasoning", "summary": []}
        content = {"type": "reasoning_text", "text": reply.thought}
        yield (
            item
            | {"content": [content], "encrypted_content": f"rs_{reply.id}", "status": "completed"},
            item | {"status": "in_progress"},
        )
    if message.text or not message.calls:
        item = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant"}
        is_cut = reply.finish == "length"
        text = {"type": "output_text", "text": message.text, "annotations": [],
                "logprobs": chat.write_tokens(reply)}  # fmt: skip
        yield (
            item | {"status": "incomplete" if is_cut else "completed", "content": [text]},
            item | {"status": "in_progress", "content": []},
        )
    for call in message.calls:
        item = {"id": f"fc_{call.id.removeprefix('call_')}", "type": "function_call",
                "call_id": call.id, "name": call.name}  # fmt: skip
        yield (
            item | {"status": "completed", "arguments": call.arguments},
            item | {"status": "in_progress", "arguments": ""},
        )


def _list_events(replies: Sequence[Reply], request: ForeignRequest) -> Iterator[JsonObject]:
    [reply] = replies
    begun = _frame(reply, request) | {"status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, (item, first) in enumerate(_write_items(reply)):
        yield {"type": "response.output_item.added", "output_index": index, "item": first}
        position: JsonObject = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            name = "response.function_call_arguments"
            yield {"type": f"{name}.delta", "delta": item["arguments"]} | position
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": f"{name}.done"} | done | position
        elif item["type"] == "message":
            yield from _list_text_events(item["content"][0], position | {"content_index": 0})
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    response = write_reply(replies, request)
    yield {"type": f"response.{response['status']}", "response": response}


def _list_text_events(part: JsonObject, position: JsonObject) -> Iterator[JsonObject]:
    text = {"logprobs": part["logprobs"]} | position
    empty = part | {"text": "", "logprobs": []}
    yield {"type": "response.content_part.added", "part": empty} | position
    yield {"type": "response.output_text.delta", "delta": part["text"]} | text
    yield {"type": "response.output_text.done", "text": part["text"]} | text
    yield {"type": "response.content_part.done", "part": part} | position


def _write_usage(reply: Reply) -> JsonObject:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }
