"""Reads and writes OpenAI's chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from rolecall.core.json_types import JsonObject
from rolecall.gateway.dialects.base import check_number, join_texts, parse, refuse, write_event
from rolecall.gateway.dialects.reply import Reply
from rolecall.gateway.dialects.request import (
    ForeignMessage,
    ForeignRequest,
    RequestError,
    Role,
    ToolCall,
    ToolChoice,
    program_tool,
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
    return join_texts(content, ("text", "refusal"))


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


class FunctionSchema(BaseModel):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None


class ChatTool(BaseModel):
    type: Literal["function"]
    function: FunctionSchema


class StreamOptions(BaseModel):
    include_usage: bool = False


class JsonSchema(BaseModel):
    schema_: JsonObject = Field(default_factory=dict, alias="schema")


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


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
    fields = parse(ChatRequest, body)
    if fields.top_logprobs:
        raise refuse("top_logprobs", "only the log-probs of sampled tokens are known; write 0")
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    return ForeignRequest(
        model=fields.model,
        messages=tuple(_read_message(message) for message in fields.messages),
        body=body,
        tools=tuple(
            program_tool(tool.function.name, tool.function.description, tool.function.parameters)
            for tool in fields.tools or []
        ),
        tool_choice=read_choice(fields.tool_choice),
        number=check_number(fields.n, "n"),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        stop=tuple(text for text in stop if text),
        schema=_read_schema(fields.response_format),
        wants_logprobs=bool(fields.logprobs),
        is_streamed=bool(fields.stream),
        wants_usage=fields.stream_options is not None and fields.stream_options.include_usage,
        unused={name: body[name] for name in SAMPLING if body.get(name) is not None},
    )


def read_choice(choice: ToolChoice | JsonObject | None) -> ToolChoice:
    """Return whether tools may, must not or must be called; a named one counts as must."""
    if isinstance(choice, dict):
        mode: ToolChoice = "auto" if choice.get("mode") == "auto" else "required"
        return mode
    return choice or "auto"


def write_reply(replies: Sequence[Reply], request: ForeignRequest) -> JsonObject:
    """Return the body of the answer."""
    return _frame(replies, request, "chat.completion") | {
        "choices": [
            {
                "index": number,
                "message": _write_message(reply),
                "finish_reason": reply.finish,
                "logprobs": _write_logprobs(reply),
            }
            for number, reply in enumerate(replies)
        ],
        "usage": write_usage(replies),
    }


def write_events(replies: Sequence[Reply], request: ForeignRequest) -> Iterator[str]:
    """Yield the answer as server-sent events."""
    frame = _frame(replies, request, "chat.completion.chunk")
    usage = {"usage": None} if request.wants_usage else {}
    for number, reply in enumerate(replies):
        for delta, finish, logprobs in _deltas(reply):
            choice = {"index": number, "delta": delta, "finish_reason": finish,
                      "logprobs": logprobs}  # fmt: skip
            yield write_event(frame | {"choices": [choice]} | usage)
    if request.wants_usage:
        yield write_event(frame | {"choices": [], "usage": write_usage(replies)})
    yield "data: [DONE]\n\n"


def write_error(error: RequestError) -> JsonObject:
    """Return the body of an error."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(error),
            "type": ERROR_TYPES.get(error.status, kind),
            "param": error.parameter or None,
            "code": error.code or None,
        }
    }


def write_error_event(error: RequestError) -> str:
    """Return an error for a stream that has begun."""
    return write_event(write_error(error))


def write_token_count(tokens: int) -> JsonObject:
    """Return the body that tells how long a prompt is, which this protocol does not ask for."""
    return {"object": "token_count", "input_tokens": tokens}


def write_usage(replies: Sequence[Reply]) -> JsonObject:
    """Return the numbers of tokens; the prompt of several replies counts once."""
    prompt, sampled = replies[0].prompt_tokens, sum(reply.sampled_tokens for reply in replies)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def write_tokens(reply: Reply) -> list[JsonObject]:
    """Return the sampled tokens with their log-probs."""
    return [
        {
            "token": token.text,
            "logprob": token.logprob,
            # A token may be a part of a character, which no text can show.
            "bytes": None if "\ufffd" in token.text else list(token.text.encode()),
            "top_logprobs": [],
        }
        for token in reply.tokens
    ]


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


def _read_schema(format: ResponseFormat | None) -> JsonObject | None:
    if format is None or format.type == "text":
        return None
    return format.json_schema.schema_ if format.json_schema is not None else {}


def _frame(replies: Sequence[Reply], request: ForeignRequest, kind: str) -> JsonObject:
    return {
        "id": f"chatcmpl-{replies[0].id}",
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


def _deltas(reply: Reply) -> Iterator[tuple[JsonObject, str | None, JsonObject | None]]:
    """Yield the pieces of a reply, each with a reason to end and log-probs if it has them."""
    message = reply.message
    yield {"role": "assistant", "content": "" if message.text else None}, None, None
    if reply.thought:
        yield {"reasoning_content": reply.thought}, None, None
    if message.text:
        yield {"content": message.text}, None, _write_logprobs(reply)
    for number, call in enumerate(message.calls):
        yield {"tool_calls": [{"index": number} | _write_call(call)]}, None, None
    yield {}, reply.finish, None


def _write_call(call: ToolCall) -> JsonObject:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _write_logprobs(reply: Reply) -> JsonObject | None:
    return {"content": write_tokens(reply), "refusal": None} if reply.tokens else None
