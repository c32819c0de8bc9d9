"""Conversations that real frameworks had with a scripted server, had again with the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from rolecall.core.json_types import JsonObject
from rolecall.gateway.dialects import generate_content
from rolecall.gateway.dialects.request import ForeignMessage, ForeignRequest, ToolCall
from rolecall.gateway.routes import choose_dialect
from tests.gateway.doors import WIRE, address_of, continues, play_program
from tests.layouts import LAYOUTS, tokenizer_of

pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason=f"{WIRE} has the conversations")
QWEN = tokenizer_of(LAYOUTS["qwen"])
FILES = sorted(WIRE.glob("*.jsonl"))


@dataclass
class Exchange:
    """One request, and what the scripted server replied, if it did."""

    path: str
    body: JsonObject
    said: ForeignMessage | None

    def read(self) -> ForeignRequest:
        dialect = choose_dialect(self.path.partition("?")[0])
        if dialect is generate_content:
            return dialect.read_request(self.body | {"model": "stub"})
        return dialect.read_request(self.body)


def exchanges(file) -> list[Exchange]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        Exchange(row["path"], row["request"], read_said(row) if row["status"] == 200 else None)
        for row in rows
        if row["method"] == "POST"
    ]


def read_said(row: JsonObject) -> ForeignMessage | None:
    """What the scripted server said, read by rules of this file's own."""
    replies = [row["reply"]] if "reply" in row else row.get("events", [])
    texts, calls = [], {}
    for number, piece in enumerate(list(pieces(replies))):
        kind, key, value = piece
        if kind == "text":
            texts.append(value)
        else:
            name, arguments = value
            old = calls.get(key, ("", ""))
            calls[key if key is not None else number] = (old[0] + name, old[1] + arguments)
    if not texts and not calls:
        return None
    named = tuple(ToolCall("", name, arguments) for name, arguments in calls.values())
    return ForeignMessage("assistant", "".join(texts), named)


def pieces(replies: list[JsonObject]) -> Iterator[tuple]:
    """(text, None, words) and (call, number, (name, arguments)) of replies in any protocol."""
    for reply in replies:
        for choice in reply.get("choices") or []:
            message = choice.get("message") or choice.get("delta") or {}
            if message.get("content"):
                yield "text", None, message["content"]
            for number, call in enumerate(message.get("tool_calls") or []):
                function = call["function"]
                words = (function.get("name") or "", function.get("arguments") or "")
                yield "call", call.get("index", number), words
        if reply.get("type") == "response.completed":
            reply = reply["response"]
        for item in reply.get("output") or []:
            if item["type"] == "function_call":
                yield "call", item["id"], (item["name"], item["arguments"])
            for part in item.get("content") or []:
                yield "text", None, part["text"]
        if reply.get("type") == "message":
            for block in reply["content"]:
                if block["type"] == "text":
                    yield "text", None, block["text"]
                else:
                    yield "call", block["id"], (block["name"], json.dumps(block["input"]))
        if reply.get("type") == "content_block_start" and "name" in reply["content_block"]:
            yield "call", reply["index"], (reply["content_block"]["name"], "")
        if reply.get("type") == "content_block_delta":
            delta = reply["delta"]
            if "text" in delta:
                yield "text", None, delta["text"]
            else:
                yield "call", reply["index"], ("", delta["partial_json"])
        for candidate in reply.get("candidates") or []:
            for number, part in enumerate(candidate["content"]["parts"]):
                if "text" in part:
                    yield "text", None, part["text"]
                else:
                    call = part["functionCall"]
                    yield "call", number, (call["name"], json.dumps(call["args"]))


def write_said(message: ForeignMessage) -> str:
    """The words of a model that says a message."""
    calls = (
        f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments}}}</tool_call>'
        for call in message.calls
    )
    return "\n".join(text for text in (message.text, *calls) if text)


def keys(request: ForeignRequest) -> list:
    system = [("system", request.instructions)] if request.instructions else []
    return [*system, *(message.key for message in request.messages)]


def test_every_recorded_request_is_read():
    number = 0
    for file in FILES:
        for exchange in exchanges(file):
            request = exchange.read()
            assert request.messages, file.name
            tools = exchange.body.get("tools") or []
            assert len(request.tools) == len(tools)
            number += 1
    assert number > 400


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_conversation_that_goes_on_keeps_the_sampled_tokens(file):
    """A model says what the scripted server said, and its ids are others than those recorded.

    A request goes on if it begins with the messages of an earlier one and its reply.
    """
    played = [exchange for exchange in exchanges(file) if exchange.said is not None]
    says = [write_said(exchange.said) for exchange in played]

    async def program(client, session):
        address = address_of(client)
        headers = {"Authorization": f"Bearer {session.key}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as plain:
            for exchange in played:
                answer = await plain.post(f"{address}{exchange.path}", json=exchange.body)
                assert answer.status_code == 200, answer.text

    if not played:
        pytest.skip("the scripted server replied nothing but errors")
    turns = play_program(QWEN, says, program).turns
    assert len(turns) == len(played)
    for later, last in find_continued(played).items():
        assert turns[last].id in turns[later].parents
        if played[later].read().tools == played[last].read().tools:
            assert continues(turns[later], turns[last])
    for later, turn in enumerate(turns):
        assert set(turn.parents) <= {earlier.id for earlier in turns[:later]}


def find_continued(played: list[Exchange]) -> dict[int, int]:
    """By number of a request: the longest earlier one whose messages and reply it begins with."""
    sent = [keys(exchange.read()) for exchange in played]
    said = [[*sent[number], exchange.said.key] for number, exchange in enumerate(played)]
    return {
        later: max(earlier, key=lambda number: len(said[number]))
        for later in range(len(played))
        if (earlier := [n for n in range(later) if sent[later][: len(said[n])] == said[n]])
    }


def test_most_recorded_requests_go_on_from_an_earlier_one():
    """So that the test above is no empty one; others rewrite their history, or begin it."""
    played = [[one for one in exchanges(file) if one.said is not None] for file in FILES]
    assert sum(map(len, played)) > 300
    assert sum(len(find_continued(exchanges)) for exchanges in played) > 150
