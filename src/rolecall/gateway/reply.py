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
from rolecall.gateway.request import ForeignMessage, ToolCall
from rolecall.tools.call_parsing import CLOSE, OPEN, Call, read_calls

Finish = Literal["stop", "length", "tool_calls"]
TAGGED = re.compile(rf"\s*{OPEN}.*?{CLOSE}\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reply:
    """A turn as a program is told of it."""

    turn: Turn
    message: ForeignMessage
    finish: Finish

    @property
    def id(self) -> str:
        return digest(self.turn.id)

    @property
    def thought(self) -> str:
        return thinking(self.turn.text)

    @property
    def prompt_tokens(self) -> int:
        return 0 if self.turn.prompt is None else len(self.turn.prompt)

    @property
    def sampled_tokens(self) -> int:
        return 0 if self.turn.tokens is None else len(self.turn.tokens)


def make_reply(turn: Turn, *, format: Format | None, stop: tuple[str, ...] = ()) -> Reply:
    """Return the reply of a turn.

    `format`: in which it calls tools; None where it has none. Words end before the first of the
    texts `stop`. A call that cannot be read is left in the words, as the program decides what to do
    with it.
    """
    calls = [] if format is None else read_calls(turn, format)
    text = cut_at(turn.visible, stop)
    if not calls or any(call.problem for call in calls):
        finish: Finish = "length" if turn.finish == "length" else "stop"
        return Reply(turn, ForeignMessage("assistant", text), finish)
    words = TAGGED.sub("\n", turn.visible).strip() if OPEN in turn.visible else ""
    named = tuple(_name_call(turn, number, call) for number, call in enumerate(calls))
    return Reply(turn, ForeignMessage("assistant", words, named), "tool_calls")


def cut_at(text: str, stop: tuple[str, ...]) -> str:
    """Return a text up to the first of some others."""
    ends = [text.find(end) for end in stop if end in text]
    return text[: min(ends)] if ends else text


def digest(*parts: object) -> str:
    """Return 24 characters that stand for some values in identifiers."""
    return sha256(repr(parts).encode()).hexdigest()[:24]


def _name_call(turn: Turn, number: int, call: Call) -> ToolCall:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return ToolCall(f"call_{digest(turn.id, number)}", call.name, arguments)
