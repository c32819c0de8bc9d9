"""Reads the texts and chat messages of rows; what an assistant says may be in parts."""

from __future__ import annotations

from typing import Any

from rolecall.rollout.parts import is_parts, parts_of
from rolecall.tags import THINK_END, THINK_START
from rolecall.types import Message


def answer_of(side: Any, place: str) -> Any:
    """What an answer says, as a text or in parts: it is that, or the last of some messages."""
    if isinstance(side, str) or is_parts(side):
        return side
    messages_of(side, place)
    return side[-1]["content"]


def messages_of(given: Any, place: str) -> list[Message]:
    """A user's text, or chat messages; of an assistant's, the thinking is marked as its own:
    templates leave it out of what was said earlier."""
    if isinstance(given, str):
        return [Message("user", given)]
    try:
        return [
            Message(
                message["role"],
                _content(message, place),
                own=(THINK_START, THINK_END) if message["role"] == "assistant" else (),
            )
            for message in given
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{place}: neither texts nor lists of chat messages: {error!r}") from error


def _content(message: dict[str, Any], place: str) -> str:
    content = message["content"]
    if not is_parts(content):
        return str(content)
    if message["role"] != "assistant":
        raise ValueError(f"{place}: only what an assistant says has parts; write a text")
    return "".join(part.text for part in parts_of(content, place))


def check_asked(shown: list[Message], place: str) -> None:
    if not shown or shown[-1].role not in ("user", "tool"):
        raise ValueError(f"{place}: the prompt does not end with a user message")


def is_imitated(message: dict[str, Any], place: str) -> bool:
    """Whether a message is imitated, as in the files of other trainers: `weight` 0 or 1."""
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        raise ValueError(f"{place}: weight: write 0 or 1 (it is {weight!r})")
    if weight is not None and is_parts(message.get("content")):
        raise ValueError(f"{place}: weight: write it on the message or on its parts, not on both")
    return weight != 0
