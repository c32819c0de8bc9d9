"""Reads the tool calls in what an agent said, and writes results as messages to it.

native: calls as the model's chat template teaches them, results as messages of the role `tool`
tags: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, <tool_response>...</tool_response>
code: the last fenced python block is a call of the tool `python`, <output>...</output>

Thinking is not searched: what a model considers there it has not said.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from rolecall.core.interfaces.tool import Format, Tool
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.tags import extract_code
from rolecall.core.types import Message, Turn

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAG = re.compile(r"<(/?)tool_call>")
# Function and parameters as Qwen3-Coder writes them between the tags.
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
# A key and a value, as GLM writes them behind the name.
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
BARE = ("<|python_tag|>", "[TOOL_CALLS]")  # before JSON in templates of Llama and Mistral
MOST_NAME = 200  # characters of a tool's name
MOST_DEPTH = 64  # of arguments inside arguments: records nest them deeper, and must be written


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `problem` says why it cannot be made."""

    name: str
    arguments: JsonObject = field(default_factory=dict)
    problem: str = ""


def read_calls(turn: Turn, format: Format) -> list[Call]:
    """Return the calls of a turn in their order; none if its length limit cut it."""
    return [] if turn.finish == "length" else calls_in(turn.visible, format)


def calls_in(text: str, format: Format) -> list[Call]:
    """Return the calls that a text without its thought makes."""
    if format == "code":
        code = extract_code(text)
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
    return [Message("user", "\n".join(shown), own=(f"<{name}>", f"</{name}>"))]


def describe_tools(tools: list[Tool], format: Format, *, without: tuple[str, ...] = ()) -> str:
    """Return a system prompt's words about the tools; a native template says them itself.

    `without` are tags of the prompt that a signature must not hold: a server may have written it.
    """
    if format == "native" or not tools:
        return ""
    if format == "code":
        return "A fenced python block at the end of your message is run and you see its output."
    listed = "\n".join(tool.signature for tool in tools)
    for tag in (*without, OPEN, CLOSE):
        listed = listed.replace(tag, f"{tag[:1]} {tag[1:]}")
    form = '{"name": NAME, "arguments": {ARGUMENT: VALUE}}'
    return f"You have these tools:\n{listed}\nCall one with {OPEN}{form}{CLOSE}."


def write_call(name: str, arguments: str) -> str:
    """Return a call in tags; arguments that are no JSON stay, and the reader says what is wrong."""
    return f'{OPEN}{{"name": {json.dumps(name.strip())}, "arguments": {arguments.strip()}}}{CLOSE}'


def cut(text: str, most: int) -> str:
    """Return the head and the tail of a long text, and between them how much is left out."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}\n[{len(text) - most} characters left out]\n{text[head - most :]}"


def share_length(texts: list[str], most: int) -> list[str]:
    """Long texts cut alike until all have `most` characters together; short ones stay whole."""
    results, remaining = list(texts), most
    by_length = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    for done, number in enumerate(by_length):
        share = remaining // (len(texts) - done)
        remaining -= min(share, len(texts[number]))
        results[number] = cut(texts[number], share)
    return results


def _tagged(text: str) -> list[Call]:
    calls: list[Call] = []
    inside: int | None = None
    for tag in TAG.finditer(text):
        if tag[1] and inside is None:
            return [*calls, Call("", problem=f"{CLOSE} without {OPEN}")]
        if not tag[1] and inside is not None:
            break
        if inside is None:
            inside = tag.end()
        else:
            calls.append(_call(text[inside : tag.start()]))
            inside = None
    return calls if inside is None else [*calls, Call("", problem=f"{OPEN} without {CLOSE}")]


def _bare(text: str) -> list[Call]:
    """Read JSON alone, as Llama and Mistral write calls; any other text makes no call."""
    for mark in BARE:
        text = text.removeprefix(mark)
    if not text.startswith(("{", "[")):
        return []
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return []
    listed = loaded if isinstance(loaded, list) else [loaded]
    named = [entry for entry in listed if isinstance(entry, dict) and "name" in entry]
    return [_read(entry) for entry in listed] if listed and len(named) == len(listed) else []


def _call(body: str) -> Call:
    if body.lstrip().startswith(FUNCTION):
        return _function(body)
    if KEY in body and not body.lstrip().startswith("{"):
        return _keyed(body)
    try:
        return _read(json.loads(body))
    except json.JSONDecodeError as error:
        return Call("", problem=f"not JSON: {error.msg} at character {error.pos}")
    except RecursionError:
        return Call("", problem="the JSON is nested too deeply")
    except ValueError as error:  # a whole number of more digits than Python reads
        return Call("", problem=f"not JSON that can be read: {error}")


def _function(body: str) -> Call:
    """Read `<function=add>`, a `<parameter=a>` with each value, `</function>`."""
    name, named, rest = body.partition(FUNCTION)[2].partition(">")
    inside, ended, _ = rest.rpartition(FUNCTION_END)
    if not named or not ended:
        return Call("", problem=f"{FUNCTION}NAME> without {FUNCTION_END}")
    arguments = {}
    for item in inside.split(PARAMETER_END)[:-1]:
        key, opened, value = item.partition(PARAMETER)[2].partition(">")
        if opened and key:
            arguments[key] = value.removeprefix("\n").removesuffix("\n")
    return _checked(Call(name.strip(), arguments))


def _keyed(body: str) -> Call:
    """Read GLM's form: the name, then `<arg_key>a</arg_key><arg_value>1</arg_value>` each."""
    name, *pairs = body.split(KEY)
    arguments: JsonObject = {}
    for pair in pairs:
        key, closed, rest = pair.partition(KEY_END)
        value, ended, _ = rest.partition(VALUE)[2].partition(VALUE_END)
        if not closed or not ended:
            return Call("", problem=f"{KEY}NAME{KEY_END} without {VALUE}...{VALUE_END}")
        arguments[key.strip()] = value.strip()
    return _checked(Call(name.strip(), arguments))


def _read(found: JsonValue) -> Call:
    """Read {"name", "arguments"}; some write `parameters`, or the arguments as JSON in a string."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return Call("", problem='a call is an object with "name" and "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return _checked(Call(found["name"], problem="the arguments are no JSON object"))
    return _checked(Call(found["name"], arguments))


def _checked(call: Call) -> Call:
    """Return the call, or a problem if it could not be written down or sent to a tool's server."""
    if len(call.name) > MOST_NAME:
        return Call("", problem=f"a tool's name has at most {MOST_NAME} characters")
    if _depth(call.arguments) > MOST_DEPTH:
        return Call("", problem=f"the arguments are nested more than {MOST_DEPTH} deep")
    try:
        json.dumps([call.name, call.arguments], ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return Call("", problem="half of a surrogate pair, such as \\ud800 alone, is no character")
    except ValueError:
        return Call("", problem="NaN and Infinity are not JSON")
    return call


def _depth(value: JsonValue) -> int:
    """Return the depth of lists and objects inside one another: {"a": [1]} has 2."""
    level, depth = [value], 0
    while level := [outer for outer in level if isinstance(outer, dict | list)]:
        depth += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth


def _without(name: str, text: str) -> str:
    """Break tags in a result, so that it cannot end its own frame, nor open another one."""
    return re.sub(rf"<(?=/?(?:{name}|tool_call)>)", "< ", text)
