"""Reads and writes Google's generateContent, whose contents are lists of parts.

The model and whether the answer is streamed stand in the address; `read_request` takes them as the
fields `model` and `stream` of the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.gateway.dialects.base import check_number, parse, refuse, write_event
from rolecall.gateway.dialects.reply import Reply
from rolecall.gateway.dialects.request import (
    ForeignMessage,
    ForeignRequest,
    RequestError,
    ToolCall,
    ToolChoice,
    program_tool,
)

CHOICES: dict[str, ToolChoice] = {"ANY": "required", "NONE": "none"}  # others may call
FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
SAMPLING = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
WRAPPINGS = ("result", "output")  # of a tool's result that is no object


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class Fields(BaseModel):
    """Reads `maxOutputTokens` as well as `max_output_tokens`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class FunctionCall(Fields):
    id: str = ""
    name: str
    args: JsonObject | None = None


class FunctionResponse(Fields):
    id: str = ""
    name: str
    response: JsonObject | None = None


class Part(Fields):
    text: str | None = None
    thought: bool = False
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Any = None
    file_data: Any = None


class Content(Fields):
    role: Literal["user", "model", "function"] = "user"
    parts: Annotated[list[Part], BeforeValidator(as_list)] = []


class FunctionDeclaration(Fields):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    parameters_json_schema: JsonObject | None = None


class Tool(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")
    function_declarations: list[FunctionDeclaration] = []


class CallingConfig(Fields):
    mode: str = "AUTO"


class ToolConfig(Fields):
    function_calling_config: CallingConfig | None = None


class GenerationConfig(Fields):
    max_output_tokens: int | None = Field(None, ge=1)
    stop_sequences: list[str] | None = None
    candidate_count: int | None = Field(None, ge=1)
    response_mime_type: str | None = None
    response_schema: JsonObject | None = None
    response_json_schema: JsonObject | None = None
    response_logprobs: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class GenerateRequest(Fields):
    """The fields that are read; others, such as `safetySettings`, are passed over."""

    model: str
    stream: bool = False
    contents: Annotated[list[Content], BeforeValidator(as_list)] = Field(min_length=1)
    system_instruction: Content | None = None
    tools: list[Tool] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig = Field(default_factory=GenerationConfig)


def read_request(body: JsonObject) -> ForeignRequest:
    """Return what `POST /models/MODEL:generateContent` asks; raises RequestError."""
    fields = parse(GenerateRequest, body)
    options = fields.generation_config
    calling = fields.tool_config.function_calling_config if fields.tool_config else None
    system = fields.system_instruction
    return ForeignRequest(
        model=fields.model,
        messages=tuple(
            message
            for number, content in enumerate(fields.contents)
            for message in _read_content(content, f"contents.{number}")
        ),
        body=body,
        instructions="" if system is None else _join_texts(system.parts, "systemInstruction"),
        tools=tuple(
            program_tool(
                declared.name,
                declared.description,
                declared.parameters_json_schema or to_json_schema(declared.parameters),
            )
            for number, tool in enumerate(fields.tools or [])
            for declared in _read_tool(tool, number)
        ),
        tool_choice="auto" if calling is None else CHOICES.get(calling.mode, "auto"),
        number=check_number(options.candidate_count, "generationConfig.candidateCount"),
        max_tokens=options.max_output_tokens,
        stop=tuple(text for text in options.stop_sequences or [] if text),
        schema=_read_schema(options),
        wants_logprobs=bool(options.response_logprobs),
        is_streamed=fields.stream,
        unused={
            name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None
        },
    )


def to_json_schema(schema: JsonValue) -> Any:
    """Return Google's form of a schema, with types in capitals, as JSON schema."""
    if isinstance(schema, list):
        return [to_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else to_json_schema(value)
        for key, value in schema.items()
    }


def write_reply(replies: Sequence[Reply], request: ForeignRequest) -> JsonObject:
    """Return the body of the answer."""
    prompt, sampled = replies[0].prompt_tokens, sum(reply.sampled_tokens for reply in replies)
    return {
        "candidates": [_write_candidate(reply, number) for number, reply in enumerate(replies)],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": sampled,
            "totalTokenCount": prompt + sampled,
        },
        "modelVersion": request.model,
        "responseId": replies[0].id,
    }


def write_events(replies: Sequence[Reply], request: ForeignRequest) -> Iterator[str]:
    """Yield the answer as one server-sent event, as this protocol has no smaller pieces."""
    yield write_event(write_reply(replies, request))


def write_error(error: RequestError) -> JsonObject:
    """Return the body of an error."""
    default = "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT"
    status = STATUSES.get(error.status, default)
    return {"error": {"code": error.status, "message": str(error), "status": status}}


def write_error_event(error: RequestError) -> str:
    """Return an error for a stream that has begun."""
    return write_event(write_error(error))


def write_token_count(tokens: int) -> JsonObject:
    """Return the body that tells how long a prompt is."""
    return {"totalTokens": tokens}


def _read_tool(tool: Tool, number: int) -> list[FunctionDeclaration]:
    if tool.model_extra:
        name = next(iter(tool.model_extra))
        reason = "it is no tool of an agent; declare functions, and run them yourself"
        raise refuse(f"tools.{number}.{name}", reason)
    return tool.function_declarations


def _read_schema(options: GenerationConfig) -> JsonObject | None:
    schema = options.response_json_schema or to_json_schema(options.response_schema)
    if schema is None and options.response_mime_type == "application/json":
        return {}
    return schema if schema is None else dict(schema)


def _read_content(content: Content, parameter: str) -> Iterator[ForeignMessage]:
    """Yield the results of tools first, then the words and calls."""
    for item in content.parts:
        if item.function_response is not None:
            result = item.function_response
            text = _write_result(result.response or {})
            yield ForeignMessage("tool", text, call_id=result.id, name=result.name)
    calls = tuple(
        ToolCall(item.function_call.id, item.function_call.name,
                 json.dumps(item.function_call.args or {}, ensure_ascii=False))
        for item in content.parts
        if item.function_call is not None
    )  # fmt: skip
    text = _join_texts(content.parts, parameter)
    if text or calls:
        yield ForeignMessage("assistant" if content.role == "model" else "user", text, calls)


def _join_texts(parts: Sequence[Part], parameter: str) -> str:
    if any(item.inline_data is not None or item.file_data is not None for item in parts):
        message = f"{parameter}: it holds data; this model reads texts"
        raise RequestError(400, message, parameter=parameter)
    return "\n".join(item.text for item in parts if item.text and not item.thought)


def _write_result(response: JsonObject) -> str:
    """Return a tool's result as text; the SDK wraps one that is no object."""
    value: JsonValue = response
    if len(response) == 1 and next(iter(response)) in WRAPPINGS:
        [value] = response.values()
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _write_candidate(reply: Reply, number: int) -> JsonObject:
    message = reply.message
    parts: list[JsonObject] = []
    if reply.thought:
        parts.append({"text": reply.thought, "thought": True})
    if message.text or not message.calls:
        parts.append({"text": message.text})
    for call in message.calls:
        arguments = {"id": call.id, "name": call.name, "args": call.arguments_object}
        parts.append({"functionCall": arguments})
    candidate = {
        "content": {"role": "model", "parts": parts},
        "finishReason": FINISH_REASONS[reply.finish],
        "index": number,
    }
    if reply.tokens:
        chosen = [
            {"token": token.text, "tokenId": token.id, "logProbability": token.logprob}
            for token in reply.tokens
        ]
        candidate["logprobsResult"] = {"chosenCandidates": chosen, "topCandidates": []}
    return candidate
