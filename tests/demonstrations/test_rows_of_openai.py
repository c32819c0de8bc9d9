"""Rows in OpenAI's form: calls of tools without a text, and messages that hold nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecall.agents.agent import Policy
from rolecall.demonstrations.offline_data import demonstrations, preferences
from rolecall.engines.scripted import ScriptedEngine
from rolecall.models.loading import load_tokenizer
from rolecall.tools.call_parsing import calls_in
from tests.toy import agent

USER = {"role": "user", "content": "Which is larger?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "3 is larger."}
LAST = {"role": "assistant", "content": "It is 3."}


@pytest.fixture
def solver(model_folder):
    tokenizer = load_tokenizer(str(model_folder))
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda _: ""))
    return {"solver": agent("solver", policy)}


def write(path: Path, row: dict) -> Path:
    path.write_text(json.dumps(row) + "\n")
    return path


def test_a_call_without_a_text_is_what_is_imitated(solver, tmp_path):
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    row = {"messages": [USER, calling, RESULT, LAST]}
    [[episode]] = demonstrations(write(tmp_path / "r.jsonl", row), solver)
    first, second = episode.turns
    [call] = calls_in(first.text, "tags")
    assert (call.name, call.arguments) == ("look", {"at": 3})
    assert second.text == "It is 3."
    assert first.text in second.messages[1].content
    tokenizer = solver["solver"].policy.tokenizer
    assert "None" not in tokenizer.decode([*second.ids[0], *second.ids[1]])


def test_words_and_a_call_stand_in_one_turn(solver, tmp_path):
    calling = {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}
    row = {"messages": [USER, calling, RESULT, LAST]}
    [[episode]] = demonstrations(write(tmp_path / "r.jsonl", row), solver)
    assert episode.turns[0].text.startswith("Let me look.\n<tool_call>")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([USER, {"role": "assistant", "content": None}], r"messages\[1\]: the assistant says noth"),
        ([{"role": "user", "content": None}, LAST], r"messages\[0\]: content: write a text"),
        ([USER, {"role": "assistant", "content": 3}], r"messages\[1\]: content: write a text"),
        (
            [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}],
            r"messages\[1\]: tool_calls: write a function with a name",
        ),
    ],
)
def test_a_message_without_a_text_is_named_with_its_row(solver, tmp_path, messages, said):
    file = write(tmp_path / "r.jsonl", {"messages": messages})
    with pytest.raises(ValueError, match=r"r\.jsonl:1: " + said):
        demonstrations(file, solver)


def test_a_preference_whose_side_says_nothing_is_named_with_its_row(solver, tmp_path):
    empty = [{"role": "assistant", "content": None}]
    row = {"prompt": "2+2?", "chosen": empty, "rejected": "5"}
    with pytest.raises(ValueError, match=r"r\.jsonl:1: .*the assistant says nothing"):
        preferences(write(tmp_path / "r.jsonl", row), solver)
