"""Finds an agent's own turns in the conversation that a foreign program sends back.

A turn that is found stands in the next prompt as the tokens that were sampled. Programs write the
conversation anew for each request, and change its form: empty texts become null, JSON gets other
spaces, thoughts are left out, ids are lost. What an agent did not say is foreign text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from rolecall.agents.agent import spoken
from rolecall.core.interfaces.tool import Format
from rolecall.core.types import Message, Turn
from rolecall.gateway.dialects.reply import TurnReply
from rolecall.gateway.dialects.request import ForeignMessage
from rolecall.tools.call_parsing import CLOSE, OPEN, Call, answers, write_call

FEWEST_QUOTED = 8  # characters of a reply that may be the beginning of a message


@dataclass(frozen=True, slots=True)
class Recorded:
    """Holds a reply, and a number that stands for the conversation that it answered."""

    reply: TurnReply
    context: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Holds what an agent is shown, and the turns of its own among it."""

    messages: list[Message]
    turns: tuple[Turn, ...]
    context: int  # stands for the whole of it


@dataclass(slots=True)
class History:
    """Keeps the replies of one agent in an episode, in the order in which they were given."""

    _by_key: dict[Hashable, list[Recorded]] = field(default_factory=lambda: defaultdict(list))
    _by_call: dict[str, Recorded] = field(default_factory=dict)

    def record(self, conversation: Conversation, reply: TurnReply) -> None:
        """Note the reply to a conversation."""
        recorded = Recorded(reply, conversation.context)
        self._by_key[reply.message.key].append(recorded)
        for call in reply.message.calls:
            self._by_call[call.id] = recorded

    def read(self, messages: Sequence[ForeignMessage], format: Format) -> Conversation:
        """Return the messages for the agent's template, its own turns as sampled tokens."""
        prompt: list[Message] = []
        turns: list[Turn] = []
        names: dict[str, str] = {}  # of tools, by the id of a call
        context = 0
        for number, message in enumerate(messages):
            if message.role == "assistant":
                names |= {call.id: call.name for call in message.calls}
                recorded = self._find(message, context)
                if recorded is None:
                    prompt.append(_write_foreign(message, format))
                else:
                    turns.append(recorded.reply.turn)
                    prompt.append(_write_own(message, recorded.reply, format))
            elif message.role == "tool":
                follows = number > 0 and messages[number - 1].role == "tool"
                name = message.name or names.get(message.call_id, "")
                _add_result(prompt, name, message.text, format=format, follows=follows)
            else:
                _add_text(prompt, message)
            context = hash((context, message.key))
        return Conversation(prompt, tuple(turns), context)

    def _find(self, message: ForeignMessage, context: int) -> Recorded | None:
        """Return the reply that a message is, or with which it begins."""
        for call in message.calls:
            recorded = self._by_call.get(call.id)
            if recorded is not None and recorded.reply.message.key == message.key:
                return recorded
        if same := self._by_key.get(message.key):
            own = [recorded for recorded in same if recorded.context == context]
            if own or message.key != ForeignMessage("assistant").key:
                return (own or same)[-1]
        return self._find_beginning(message, context)

    def _find_beginning(self, message: ForeignMessage, context: int) -> Recorded | None:
        """Return the longest reply that a program has added a text to."""
        text, best = message.text.strip(), None
        for recorded in (one for same in self._by_key.values() for one in same):
            reply = recorded.reply.message
            words = reply.text.strip()
            if len(words) < FEWEST_QUOTED or reply.calls or not text.startswith(words):
                continue
            rank = (len(words), recorded.context == context)
            if best is None or rank >= best[0]:
                best = (rank, recorded)
        return None if best is None else best[1]


def _write_own(message: ForeignMessage, reply: TurnReply, format: Format) -> Message:
    called = tuple(call.name for call in message.calls) if format == "native" else ()
    own = spoken(reply.turn, called)
    own.tail = message.text.strip()[len(reply.message.text.strip()) :]
    return own


def _write_foreign(message: ForeignMessage, format: Format) -> Message:
    """Return words that the agent did not say, with calls in the agent's own form or as tags."""
    if format == "native" and all(_is_object(call.arguments) for call in message.calls):
        calls = tuple((call.name, call.arguments) for call in message.calls)
        return Message("assistant", message.text, calls=calls)
    tags = [write_call(call.name, call.arguments) for call in message.calls]
    text = "\n".join(piece for piece in (message.text, *tags) if piece)
    is_forged = text.count(OPEN) + text.count(CLOSE) != 2 * len(tags)
    return Message("assistant", text, own=() if is_forged or not tags else (OPEN, CLOSE))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _add_result(
    prompt: list[Message], name: str, text: str, *, format: Format, follows: bool
) -> None:
    """Add a tool's result; in tags, results of one answer stand in one message."""
    [result] = answers([(Call(name), text)], format)
    if follows and result.role == "user" and prompt:
        result.content = f"{prompt[-1].content}\n{result.content}"
        prompt[-1] = result
    else:
        prompt.append(result)


def _add_text(prompt: list[Message], message: ForeignMessage) -> None:
    """Add a text of the user or the system.

    Templates take one system text, which comes first, and many want user and assistant in turns.
    """
    role, text = message.role, message.text
    if role == "system" and prompt and prompt[-1].role != "system":
        role, text = "user", f"[system]\n{text}"
    if prompt and prompt[-1].role == role and not prompt[-1].own:
        prompt[-1] = Message(role, f"{prompt[-1].content}\n\n{text}")
    else:
        prompt.append(Message(role, text))
