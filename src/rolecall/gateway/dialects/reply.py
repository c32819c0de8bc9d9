"""Makes an agent's turn a reply to a foreign program: its words and its calls of tools."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from rolecall.core.interfaces.tool import Format
from rolecall.core.tags import thinking
from rolecall.core.types import Turn
from rolecall.gateway.dialects.request import ForeignMessage, ToolCall
from rolecall.tools.call_parsing import CLOSE, OPEN, Call, read_calls

Finish = Literal["stop", "length", "tool_calls"]
TAGGED = re.compile(rf"\s*{OPEN}.*?{CLOSE}\s*", re.DOTALL)
CALL_ID = re.compile(r"call_([0-9a-f]{24})_\d+")


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token with its log-probability."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer as a program is told of it."""

    id: str
    message: ForeignMessage
    finish: Finish
    thought: str = ""
    stop_text: str = ""  # of the request, which ended the words
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    tokens: tuple[SampledToken, ...] = ()  # where they were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply(Reply):
    """A reply that is one turn of an agent."""

    turn: Turn


def make_reply(
    turn: Turn,
    *,
    format: Format | None,
    stop: tuple[str, ...] = (),
    tokens: tuple[SampledToken, ...] = (),
) -> TurnReply:
    """Return the reply of a turn.

    `format`: in which it calls tools; None where it has none. Words end before the first of the
    texts `stop`. A call that cannot be read is left in the words, as the program decides what to do
    with it.
    """
    calls = [] if format is None else read_calls(turn, format)
    text, stop_text = cut_at(turn.visible, stop)
    finish: Finish = "length" if turn.finish == "length" else "stop"
    message = ForeignMessage("assistant", text)
    if calls and not any(call.problem for call in calls):
        words = TAGGED.sub("\n", turn.visible).strip() if OPEN in turn.visible else ""
        named = tuple(_name_call(turn, number, call) for number, call in enumerate(calls))
        message, finish, stop_text = ForeignMessage("assistant", words, named), "tool_calls", ""
    return TurnReply(
        id=digest(turn.id),
        message=message,
        finish=finish,
        thought=thinking(turn.text),
        stop_text=stop_text,
        prompt_tokens=0 if turn.prompt is None else len(turn.prompt),
        sampled_tokens=0 if turn.tokens is None else len(turn.tokens),
        tokens=tokens,
        turn=turn,
    )


def cut_at(text: str, stop: tuple[str, ...]) -> tuple[str, str]:
    """Return a text up to the first of some others, and which of them that is."""
    ends = [(text.find(end), end) for end in stop if end in text]
    if not ends:
        return text, ""
    position, end = min(ends)
    return text[:position], end


def digest(*parts: object) -> str:
    """Return 24 characters that stand for some values in identifiers."""
    return sha256(repr(parts).encode()).hexdigest()[:24]


def reply_of_call(call_id: str) -> str:
    """Return the id of the reply that made a call; "" for a call of somebody else."""
    match = CALL_ID.fullmatch(call_id)
    return match[1] if match else ""


def _name_call(turn: Turn, number: int, call: Call) -> ToolCall:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return ToolCall(f"call_{digest(turn.id)}_{number}", call.name, arguments)
