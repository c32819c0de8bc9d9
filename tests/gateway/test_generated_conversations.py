"""Conversations made at random, in all protocols: each own turn is found, and no other one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolecall.core.json_types import JsonObject
from rolecall.gateway.dialects import chat, generate_content, messages, responses
from rolecall.gateway.dialects.reply import TurnReply
from rolecall.gateway.history import FEWEST_QUOTED
from tests.gateway.doors import continues, play_session
from tests.layouts import LAYOUTS, tokenizer_of

QWEN = tokenizer_of(LAYOUTS["qwen"])
DIALECTS = {"chat": chat, "responses": responses, "messages": messages, "google": generate_content}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
# What programs do to a conversation before they send it back; see `docs/external.md`.
EDITS = ("none", "strip", "parts", "spaces", "ids", "tail", "forget", "shout")
WORDS = ("It is four.", "Yes.", "No, five I think.", "  padded words  ", "")


@dataclass
class Said:
    """A message of the program's own list; `turn` is set where an agent said it."""

    role: str
    text: str = ""
    calls: list[tuple[str, str, JsonObject]] = field(default_factory=list)  # id, name, arguments
    call: tuple[str, str] | None = None  # id and name of the call whose result this is
    turn: str | None = None


def edit(said: Said, kind: str, random: Random) -> Said:
    """What the program makes of a message of an assistant; `shout` is not what was said."""
    if kind == "strip":
        return replace(said, text=said.text.strip())
    if kind == "ids":
        names = [(f"mine-{random.random()}", name, given) for _, name, given in said.calls]
        return replace(said, calls=names)
    if kind == "tail" and not said.calls:
        text = f"{said.text.strip()}\nObservation: none"
        is_found = len(said.text.strip()) >= FEWEST_QUOTED
        return replace(said, text=text, turn=said.turn if is_found else None)
    if kind == "shout":
        return replace(said, text=f"{said.text.upper()}!", turn=None)
    return said


def write_chat(items: list[Said], kind: str) -> JsonObject:
    written = []
    for item in items:
        content = [{"type": "text", "text": item.text}] if kind == "parts" else item.text
        entry: JsonObject = {"role": item.role, "content": content}
        if item.calls:
            entry["content"] = content or None
            entry["tool_calls"] = [
                {"id": id, "function": {"name": name, "arguments": write_json(given, kind)}}
                for id, name, given in item.calls
            ]
        if item.call:
            entry |= {"tool_call_id": item.call[0]}
        written.append(entry)
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    return {"model": "solver", "messages": written, "tools": [tool]}


def write_responses(items: list[Said], kind: str) -> JsonObject:
    written: list[JsonObject] = []
    for item in items:
        if item.call:
            written.append(
                {"type": "function_call_output", "call_id": item.call[0], "output": item.text}
            )
            continue
        if item.text or not item.calls:
            part = "output_text" if item.role == "assistant" else "input_text"
            content = [{"type": part, "text": item.text}] if kind == "parts" else item.text
            written.append({"role": item.role, "content": content})
        written += [
            {"type": "function_call", "call_id": id, "name": name,
             "arguments": write_json(given, kind)}
            for id, name, given in item.calls
        ]  # fmt: skip
    tool = {"type": "function", "name": "add", "parameters": SCHEMA}
    return {"model": "solver", "input": written, "tools": [tool]}


def write_messages(items: list[Said], kind: str) -> JsonObject:
    written: list[JsonObject] = []
    for item in items:
        if item.call:
            blocks = [{"type": "tool_result", "tool_use_id": item.call[0], "content": item.text}]
        else:
            blocks = [{"type": "text", "text": item.text}] if item.text or not item.calls else []
            blocks += [
                {"type": "tool_use", "id": id, "name": name, "input": given}
                for id, name, given in item.calls
            ]
        role = "user" if item.call else item.role
        written.append({"role": role, "content": blocks})
    tool = {"name": "add", "input_schema": SCHEMA}
    return {"model": "solver", "messages": written, "tools": [tool], "max_tokens": 100}


def write_google(items: list[Said], kind: str) -> JsonObject:
    written: list[JsonObject] = []
    for item in items:
        if item.call:
            result = {"name": item.call[1], "response": {"result": item.text}}
            written.append({"role": "user", "parts": [{"functionResponse": result}]})
            continue
        parts: list[JsonObject] = [{"text": item.text}] if item.text or not item.calls else []
        parts += [{"functionCall": {"name": name, "args": given}} for _, name, given in item.calls]
        role = "model" if item.role == "assistant" else item.role
        written.append({"role": role, "parts": parts})
    tool = {"functionDeclarations": [{"name": "add", "parametersJsonSchema": SCHEMA}]}
    return {"model": "solver", "contents": written, "tools": [tool]}


WRITERS = {
    "chat": write_chat,
    "responses": write_responses,
    "messages": write_messages,
    "google": write_google,
}


def write_json(value: JsonObject, kind: str) -> str:
    return json.dumps(value, indent=2 if kind == "spaces" else None)


def say(random: Random) -> str:
    """The words of the model: some of a few texts, so that equal ones come often, and calls."""
    text = random.choice(WORDS)
    calls = [
        f'<tool_call>{{"name": "add", "arguments": {{"a": {random.randint(0, 2)}}}}}</tool_call>'
        for _ in range(random.choice((0, 0, 1, 2)))
    ]
    return "\n".join([text, *calls]) if calls else text or "nothing"


def play_one(seed: int) -> int:
    """Play a conversation, and return how many turns of its own the agent was shown."""
    random = Random(seed)
    expected: dict[str, list[str]] = {}  # by turn: its own turns in the prompt
    before: dict[str, str | None] = {}  # by turn: the one before, if its whole conversation goes on

    async def program(session):
        items = [Said("user", "2 + 2?")]
        newest, goes_on = "", []
        for _ in range(random.randint(2, 6)):
            dialect = random.choice(list(DIALECTS))
            kind = random.choice(EDITS)
            sent = list(items)
            places = [number for number, item in enumerate(sent) if item.role == "assistant"]
            changed = random.choice(places) if places and kind != "none" else None
            if changed is not None and kind == "forget":  # the program compacts its history
                sent = [*sent[: places[0]], Said("user", "Go on.")]
            elif changed is not None:
                edited = edit(sent[changed], kind, random)
                renamed = dict(
                    zip(
                        [call[0] for call in sent[changed].calls],
                        [call[0] for call in edited.calls],
                        strict=True,
                    )
                )
                sent[changed] = edited
                sent = [
                    replace(item, call=(renamed.get(item.call[0], item.call[0]), item.call[1]))
                    if item.call
                    else item
                    for item in sent
                ]
            body = WRITERS[dialect](sent, kind)
            request = DIALECTS[dialect].read_request(body)
            [reply] = await session.answer("solver", request, body_digest=json.dumps(body))
            again = await session.answer(
                "solver", request, body_digest=json.dumps(body), is_retry=True
            )
            assert again == [reply], "a retry is another turn"
            turn = reply.turn.id
            expected[turn] = [item.turn for item in sent if item.turn is not None]
            keys = [message.key for message in request.messages]
            is_continued = goes_on and keys[: len(goes_on)] == goes_on
            before[turn] = newest if is_continued else None
            newest, goes_on = turn, [*keys, reply.message.key]
            items.append(as_said(reply))
            for id, name, _ in items[-1].calls:
                items.append(Said("tool", f"result {random.randint(0, 9)}", call=(id, name)))
            items.append(Said("user", f"Question {random.randint(0, 1)}"))
        return expected

    episode = play_session(QWEN, lambda request: say(random), program)
    assert episode.error is None
    turns = {turn.id: turn for turn in episode.turns}
    for name, own in expected.items():
        found = [turns[parent].text for parent in turns[name].parents]
        assert found == [turns[turn].text for turn in own]
        if before[name] is not None:
            assert continues(turns[name], turns[before[name]])
    return sum(map(len, expected.values()))


def as_said(reply: TurnReply) -> Said:
    calls = [(call.id, call.name, call.arguments_object) for call in reply.message.calls]
    return Said("assistant", reply.message.text, calls, turn=reply.turn.id)


@given(st.integers(0, 2**32))
@example(8794)  # a call of another id behind a message without one, in Responses
@settings(max_examples=40, deadline=None)
def test_own_turns_are_found_in_whatever_form_they_come_back(seed):
    play_one(seed)


@pytest.mark.evidence
def test_own_turns_are_found_in_a_thousand_conversations():
    assert sum(play_one(seed) for seed in range(1000)) > 4000
