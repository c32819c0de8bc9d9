"""Declares what a foreign program asks an agent, in whichever protocol it speaks."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from rolecall.core.interfaces.tool import Tool
from rolecall.core.json_types import JsonObject

Role = Literal["system", "user", "assistant", "tool"]
ToolChoice = Literal["auto", "none", "required"]


class RequestError(Exception):
    """A request that is answered with an error.

    `code` is the word by which clients tell one error from another, such as
    `context_length_exceeded`; `parameter` names the field of the request.
    """

    def __init__(self, status: int, message: str, *, code: str = "", parameter: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.parameter = status, code, parameter


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in a message of an assistant."""

    id: str
    name: str
    arguments: str  # JSON, or what the model wrote in its place

    @property
    def key(self) -> Hashable:
        """The part of a call that stays when a program writes its JSON anew."""
        return self.name, canonical_json(self.arguments)

    @property
    def arguments_object(self) -> JsonObject:
        """The arguments as an object; {} if they are none."""
        try:
            read = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return {}
        return read if isinstance(read, dict) else {}


@dataclass(frozen=True, slots=True)
class ForeignMessage:
    """One message of a conversation that a program keeps itself."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""  # of the call whose result this is
    name: str = ""  # of the tool whose result this is, where the protocol tells it

    @property
    def key(self) -> Hashable:
        """The part of a message that stays when a program sends it back in another form."""
        return self.role, self.text.strip(), tuple(call.key for call in self.calls)


@dataclass(frozen=True, slots=True)
class ForeignRequest:
    """One request for an answer."""

    model: str
    messages: tuple[ForeignMessage, ...]
    body: JsonObject  # as it was sent; some protocols repeat parts of it in the answer
    instructions: str = ""  # the system prompt, where it stands apart from the messages
    previous: str = ""  # id of the reply whose conversation goes on in `messages`
    tools: tuple[Tool, ...] = ()  # that the program has
    tool_choice: ToolChoice = "auto"
    number: int = 1  # of replies
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    schema: JsonObject | None = None  # JSON schema of the answer; {}: any JSON; None: a text
    wants_logprobs: bool = False
    is_streamed: bool = False
    wants_usage: bool = False  # at the end of a stream
    unused: JsonObject = field(default_factory=dict)  # sampling options, which the agent decides


def canonical_json(text: str) -> str:
    """Return JSON with its keys in order and without spaces; other text as it is."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text.strip()


def program_tool(name: str, description: str | None, parameters: JsonObject | None) -> Tool:
    """Return a tool that the program calls itself. Raises RequestError."""
    schema: JsonObject = parameters or {"type": "object", "properties": {}}
    required, properties = schema.get("required", []), schema.get("properties", {})
    if not isinstance(properties, dict) or not isinstance(required, list):
        message = f"the parameters of the tool {name!r} are no JSON schema of an object"
        raise RequestError(400, message, parameter="tools")
    return Tool(name, description or "", schema, _call_by_program)


async def _call_by_program(**arguments: object) -> str:
    raise NotImplementedError("the program that keeps the conversation calls its tools itself")
