"""Reads the texts and chat messages of rows; what an assistant says may be in parts."""

from __future__ import annotations

import json
import re
from typing import Any

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.types import Message
from rolecall.demonstrations.weighted_spans import OWN, is_parts, read_spans
from rolecall.tools.call_parsing import CLOSE, OPEN

MOST_WEIGHT = 1000.0
SPEAKER = re.compile(r"\n\n(Human|Assistant):")


def read_answer(side: Any, place: str) -> Any:
    """Return what an answer says, as a text or in parts: it is that, or the last of some messages.

    Raises ValueError where it says nothing.
    """
    if isinstance(side, str) or is_parts(side):
        return side
    read_messages(side, place)
    return said_in(side[-1], place)


def read_transcript(side: Any) -> Any:
    """Return the messages of a conversation that is written as one text; anything else as it is.

    "\\n\\nHuman: Hi\\n\\nAssistant: Hello" makes a user's "Hi" and an assistant's "Hello".
    """
    if not isinstance(side, str) or not SPEAKER.match(side):
        return side
    _, *parts = SPEAKER.split(side)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[speaker], "content": text.strip()}
        for speaker, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def read_messages(given: str | list[JsonObject], place: str) -> list[Message]:
    """Return the messages of a user's text, or of chat messages.

    The thinking and the calls of an assistant are marked as its own: templates leave thinking out
    of what was said earlier.
    """
    if isinstance(given, str):
        return [Message("user", given)]
    try:
        return [
            Message(
                message["role"],
                _read_text(message, f"{place}: messages[{number}]"),
                own=OWN if message["role"] == "assistant" else (),
            )
            for number, message in enumerate(given)
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{place}: neither texts nor lists of chat messages: {error!r}") from error


def said_in(message: JsonObject, place: str) -> Any:
    """Return what an assistant's message says: a text with its calls in tags, or parts.

    Raises ValueError for one without content and calls, and for calls beside parts.
    """
    content, calls = message.get("content"), message.get("tool_calls") or []
    if is_parts(content):
        if calls:
            raise ValueError(f"{place}: an answer in parts has tool_calls; write them into a part")
        return content
    text = "" if content is None else content
    if not isinstance(text, str):
        raise ValueError(f"{place}: content: write a text (it is {content!r})")
    whole = "\n".join([piece for piece in (text, *(_call(call, place) for call in calls)) if piece])
    if not whole:
        raise ValueError(f"{place}: the assistant says nothing: content and tool_calls are empty")
    return whole


def has_tool_calls(row: JsonObject) -> bool:
    """Return whether a message of the row holds calls beside its content."""
    return any(
        isinstance(message, dict) and bool(message.get("tool_calls"))
        for side in row.values()
        if isinstance(side, list)
        for message in side
    )


def _call(call: JsonValue, place: str) -> str:
    """Return a call in the form in which agents write calls in tags."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError(f"{place}: tool_calls: write a function with a name (it is {call!r})")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ValueError(f"{place}: tool_calls: the arguments are no JSON: {error}") from error
    written = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}{written}{CLOSE}"


def _read_text(message: JsonObject, place: str) -> str:
    """Return what a message holds as one text. Raises ValueError where it holds none."""
    if message["role"] == "assistant":
        body = said_in(message, place)
        return "".join(span.text for span in read_spans(body, place)) if is_parts(body) else body
    content = message["content"]
    if is_parts(content):
        raise ValueError(f"{place}: only what an assistant says has parts; write a text")
    if not isinstance(content, str):
        raise ValueError(f"{place}: content: write a text (it is {content!r})")
    return content


def check_asked(shown: list[Message], place: str) -> None:
    if not shown or shown[-1].role not in ("user", "tool"):
        raise ValueError(f"{place}: the prompt does not end with a user message")


def read_weight(holder: JsonObject, place: str) -> float:
    """Return how much a message or a row counts: its `weight`, by default 1; 0 is only shown."""
    weight = holder.get("weight")
    if weight is None:
        return 1.0
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 <= weight <= MOST_WEIGHT:
        raise ValueError(
            f"{place}: weight: write a number from 0 to {MOST_WEIGHT:g} (it is {weight!r})"
        )
    if is_parts(holder.get("content")):
        raise ValueError(f"{place}: weight: write it on the message or on its parts, not on both")
    return float(weight)
