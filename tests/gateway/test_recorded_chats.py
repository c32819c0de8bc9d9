"""Conversations that real frameworks had with a scripted server, read by the gateway."""

from __future__ import annotations

import json

import numpy as np
import pytest
from openai.types.chat import ChatCompletion

from rolecall.core.types import Turn
from rolecall.gateway import chat
from rolecall.gateway.history import History
from rolecall.gateway.reply import Reply
from rolecall.gateway.request import ForeignMessage, ToolCall
from tests.gateway.doors import WIRE

pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason=f"{WIRE} has the conversations")


def recorded() -> list[tuple[str, list[dict]]]:
    """Each file with its chat completions, in their order."""
    chats = []
    for file in sorted(WIRE.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = [row for row in rows if row["path"].endswith("/chat/completions")]
        if rows:
            chats.append((file.stem, rows))
    return chats


def said(row: dict) -> ForeignMessage | None:
    """What the scripted server replied, if it did, as a message."""
    reply = row.get("reply")
    if row["status"] != 200 or reply is None:
        return None
    if isinstance(reply, dict):
        message = reply["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        text = message.get("content") or ""
    else:
        text, calls = "", []
        events = reply if isinstance(reply, list) else str(reply).splitlines()
        for event in events:
            data = event
            if isinstance(event, str):
                if not event.startswith("data: {"):
                    continue
                data = json.loads(event[6:])
            for choice in data.get("choices") or []:
                text += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or []:
                    while len(calls) <= part["index"]:
                        calls.append({"id": "", "function": {"name": "", "arguments": ""}})
                    call = calls[part["index"]]
                    call["id"] += part.get("id") or ""
                    for name in ("name", "arguments"):
                        call["function"][name] += part.get("function", {}).get(name) or ""
    named = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in calls
    )
    return ForeignMessage("assistant", text, named)


def a_turn(number: int, message: ForeignMessage) -> Turn:
    turn = Turn(f"e/{number}", "t", "e", "solver", "p", (number,), text=message.text)
    turn.prompt, turn.tokens = np.array([1], np.int32), np.array([2], np.int32)
    return turn


def test_every_recorded_request_is_read():
    number = 0
    for name, rows in recorded():
        for row in rows:
            asked = chat.read_request(row["request"])
            assert asked.messages, name
            assert len(asked.tools) == len(row["request"].get("tools") or [])
            assert asked.is_streamed == bool(row["request"].get("stream"))
            number += 1
    assert number > 150


def test_replies_that_come_back_unedited_are_found():
    """An assistant's message is found if the server said it; frameworks that write it anew add to
    it, and what nobody said is not found.
    """
    found, wanted, spliced_wrongly = 0, 0, []
    for name, rows in recorded():
        history, earlier = History(), []
        for number, row in enumerate(rows):
            asked = chat.read_request(row["request"])
            conversation = history.read(asked.messages, "native")
            turns = conversation.turns
            sent = [message for message in asked.messages if message.role == "assistant"]
            known = [m for m in sent if any(m.key == one.key for one in earlier)]
            wanted += len(known)
            found += sum(any(m.text.strip() == t.text.strip() for t in turns) for m in known)
            if len(turns) > len(sent):
                spliced_wrongly.append(name)
            if (message := said(row)) is not None:
                reply = Reply(a_turn(number, message), message, "stop")
                history.record(conversation, reply)
                earlier.append(message)
    assert wanted > 60
    assert found == wanted
    assert spliced_wrongly == []


def test_a_reply_is_what_the_client_of_openai_reads():
    message = ForeignMessage("assistant", "", (ToolCall("call_1", "add", '{"a": 1}'),))
    asked = chat.read_request({"model": "m", "messages": [{"role": "user", "content": "?"}]})
    body = chat.write_reply(Reply(a_turn(0, message), message, "tool_calls"), asked)
    read = ChatCompletion.model_validate(body, strict=True)
    assert read.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    assert read.usage.total_tokens == 2
