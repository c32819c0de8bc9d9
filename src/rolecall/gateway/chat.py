"""Reads and writes OpenAI's chat completions: requests, replies, streams of events and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from rolecall.core.interfaces.tool import Tool
from rolecall.core.json_types import JsonObject
from rolecall.gateway.reply import Reply
from rolecall.gateway.request import (
    ForeignMessage,
    ForeignRequest,
    RequestError,
    Role,
    ToolCall,
    ToolChoice,
    call_by_program,
)

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Options of sampling, which the agent's own take the place of.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "logit_bias", "seed",
)  # fmt: skip
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def join_parts(content: Any) -> str:
    """Return a message's content as one text; raises ValueError for images and audio."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for item in content:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind not in ("text", "refusal"):
            raise ValueError(f"content of the type {kind!r}: this model reads texts")
        texts.append(str(item.get(kind) or ""))
    return "\n".join(texts)


Content = Annotated[str, BeforeValidator(join_parts)]


class Function(BaseModel):
    name: str
    arguments: str | JsonObject = "{}"


class Call(BaseModel):
    id: str = ""
    function: Function


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = ""
    tool_calls: list[Call] | None = None
    tool_call_id: str = ""
    name: str | None = None


class Schema(BaseModel):
    name: str
    description: str | None = None
    parameters: JsonObject = {"type": "object", "properties": {}}


class ChatTool(BaseModel):
    type: Literal["function"]
    function: Schema


class StreamOptions(BaseModel):
    include_usage: bool = False


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]


class ChatRequest(BaseModel):
    """The fields that are read; others, such as `user` and `metadata`, are passed over."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | JsonObject | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None
    n: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def read_request(body: JsonObject) -> ForeignRequest:
    """Return what the body of `POST /chat/completions` asks; raises RequestError."""
    try:
        fields = ChatRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parameter = ".".join(map(str, first["loc"]))
        message = f"{parameter}: {first['msg']}"
        raise RequestError(400, message, parameter=parameter) from error
    _check_supported(fields)
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    choice: ToolChoice = "auto"
    if isinstance(fields.tool_choice, dict):
        choice = "required"
    elif fields.tool_choice is not None:
        choice = fields.tool_choice
    return ForeignRequest(
        model=fields.model,
        messages=tuple(_read_message(message) for message in fields.messages),
        tools=tuple(_read_tool(tool) for tool in fields.tools or []),
        tool_choice=choice,
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        stop=tuple(text for text in stop if text),
        wants_json=fields.response_format is not None and fields.response_format.type != "text",
        wants_logprobs=bool(fields.logprobs),
        is_streamed=bool(fields.stream),
        wants_usage=fields.stream_options is not None and fields.stream_options.include_usage,
        unused={name: body[name] for name in SAMPLING if body.get(name) is not None},
    )


def write_reply(reply: Reply, request: ForeignRequest) -> JsonObject:
    """Return the body of the answer."""
    return _frame(reply, request, "chat.completion") | {
        "choices": [
            {
                "index": 0,
                "message": _write_message(reply),
                "finish_reason": reply.finish,
                "logprobs": _write_logprobs(reply) if request.wants_logprobs else None,
            }
        ],
        "usage": write_usage(reply),
    }


def write_events(reply: Reply, request: ForeignRequest) -> Iterator[str]:
    """Yield the answer as server-sent events."""
    frame = _frame(reply, request, "chat.completion.chunk")
    usage = {"usage": None} if request.wants_usage else {}

    def chunk(delta: JsonObject, finish: str | None = None, logprobs: Any = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return write_event(frame | {"choices": [choice]} | usage)

    message = reply.message
    yield chunk({"role": "assistant", "content": "" if message.text else None})
    if reply.thought:
        yield chunk({"reasoning_content": reply.thought})
    if message.text:
        logprobs = _write_logprobs(reply) if request.wants_logprobs else None
        yield chunk({"content": message.text}, logprobs=logprobs)
    for number, call in enumerate(message.calls):
        yield chunk({"tool_calls": [{"index": number} | _write_call(call)]})
    yield chunk({}, finish=reply.finish)
    if request.wants_usage:
        yield write_event(frame | {"choices": [], "usage": write_usage(reply)})
    yield "data: [DONE]\n\n"


def write_error(error: RequestError) -> JsonObject:
    """Return the body of an error."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": error.message,
            "type": ERROR_TYPES.get(error.status, kind),
            "param": error.parameter or None,
            "code": error.code or None,
        }
    }


def write_event(data: JsonObject) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def write_usage(reply: Reply) -> JsonObject:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }


def _check_supported(fields: ChatRequest) -> None:
    if fields.top_logprobs:
        message = "top_logprobs: only the log-probs of the sampled tokens are known; write 0"
        raise RequestError(400, message, code="unsupported_parameter", parameter="top_logprobs")
    if fields.n is not None and fields.n > 1:
        message = f"n: {fields.n} answers to one request; ask {fields.n} times"
        raise RequestError(400, message, code="unsupported_parameter", parameter="n")


def _read_message(message: ChatMessage) -> ForeignMessage:
    calls = tuple(
        ToolCall(
            call.id,
            call.function.name,
            call.function.arguments
            if isinstance(call.function.arguments, str)
            else json.dumps(call.function.arguments),
        )
        for call in message.tool_calls or []
    )
    return ForeignMessage(
        ROLES[message.role], message.content, calls, message.tool_call_id, message.name or ""
    )


def _read_tool(tool: ChatTool) -> Tool:
    function = tool.function
    return Tool(function.name, function.description or "", function.parameters, call_by_program)


def _frame(reply: Reply, request: ForeignRequest, kind: str) -> JsonObject:
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _write_message(reply: Reply) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": reply.message.text or None}
    if not reply.message.calls:
        message |= {"content": reply.message.text, "refusal": None}
    if reply.thought:
        message["reasoning_content"] = reply.thought
    if reply.message.calls:
        message["tool_calls"] = [_write_call(call) for call in reply.message.calls]
    return message


def _write_call(call: ToolCall) -> JsonObject:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _write_logprobs(reply: Reply) -> JsonObject | None:
    turn = reply.turn
    if turn.tokens is None or turn.logprobs is None:
        return None
    pairs = zip(turn.tokens.tolist(), turn.logprobs.tolist(), strict=True)
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value in pairs
        ],
        "refusal": None,
    }
