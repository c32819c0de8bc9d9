"""What an agent said in, the tool calls it makes out; and results as the messages that answer.

native: calls as the model's chat template teaches them, results as messages of the role `tool`
tags: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, <tool_response>...</tool_response>
code: the last fenced python block is a call of the tool `python`, <output>...</output>

Thinking is not searched: what a model considers there it has not said.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from rolecall.core import Message, Turn
from rolecall.tags import code_of
from rolecall.tools.base import Tool

Format = Literal["native", "tags", "code"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Function and parameters as Qwen3-Coder writes them between the tags.
FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
BARE = ("<|python_tag|>", "[TOOL_CALLS]")  # before JSON in templates of Llama and Mistral


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `problem` says why it cannot be made."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def calls_of(turn: Turn, format: Format) -> list[Call]:
    """The calls of a turn in their order; none if its length limit cut it."""
    if turn.finish == "length":
        return []
    text = turn.visible
    if format == "code":
        code = code_of(text)
        return [] if code is None else [Call("python", {"code": code})]
    if OPEN in text or CLOSE in text:
        return _tagged(text)
    return _bare(text) if format == "native" else []


def answers(results: list[tuple[Call, str]], format: Format) -> list[Message]:
    """Messages that tell the agent what its calls came to, in their order."""
    if format == "native":
        return [Message("tool", text, name=call.name) for call, text in results]
    name = "output" if format == "code" else "tool_response"
    shown = (f"<{name}>\n{_without(name, text)}\n</{name}>" for _, text in results)
    return [Message("user", "\n".join(shown))]


def described(tools: list[Tool], format: Format) -> str:
    """What a system prompt says about them; a native template says it itself."""
    if format == "native" or not tools:
        return ""
    if format == "code":
        return "A fenced python block at the end of your message is run and you see its output."
    listed = "\n".join(tool.signature for tool in tools)
    form = '{"name": NAME, "arguments": {ARGUMENT: VALUE}}'
    return f"You have these tools:\n{listed}\nCall one with {OPEN}{form}{CLOSE}."


def cut(text: str, most: int) -> str:
    """The head and the tail of a long text, and between them how much is left out."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}\n[{len(text) - most} characters left out]\n{text[head - most :]}"


def _tagged(text: str) -> list[Call]:
    calls: list[Call] = []
    rest = text
    while OPEN in rest or CLOSE in rest:
        before, _, rest = rest.partition(OPEN)
        if CLOSE in before:
            return [*calls, Call("", problem=f"{CLOSE} without {OPEN}")]
        body, closed, rest = rest.partition(CLOSE)
        if not closed or OPEN in body:
            return [*calls, Call("", problem=f"{OPEN} without {CLOSE}")]
        calls.append(_call(body))
    return calls


def _bare(text: str) -> list[Call]:
    """JSON alone, as Llama and Mistral write calls; any other text makes no call."""
    for mark in BARE:
        text = text.removeprefix(mark)
    if not text.startswith(("{", "[")):
        return []
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return []
    listed = found if isinstance(found, list) else [found]
    named = [entry for entry in listed if isinstance(entry, dict) and "name" in entry]
    return [_read(entry) for entry in listed] if listed and len(named) == len(listed) else []


def _call(body: str) -> Call:
    function = FUNCTION.search(body)
    if function is not None:
        return Call(function[1].strip(), dict(PARAMETER.findall(function[2])))
    try:
        return _read(json.loads(body))
    except json.JSONDecodeError as error:
        return Call("", problem=f"not JSON: {error.msg} at character {error.pos}")


def _read(found: Any) -> Call:
    """{"name", "arguments"}; some write `parameters`, or the arguments as JSON in a string."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Call("", problem='a call is an object with "name" and "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = None
    if not isinstance(arguments, dict):
        return Call(found["name"], problem="the arguments are no JSON object")
    return Call(found["name"], arguments)


def _without(name: str, text: str) -> str:
    """A result cannot end its own frame, nor open another one."""
    return re.sub(rf"<(?=/?(?:{name}|tool_call)>)", "< ", text)
