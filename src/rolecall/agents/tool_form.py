"""Finds out whether a chat template shows tools, takes their results, and writes calls we read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from rolecall.agents.spoken_text import spoken_text
from rolecall.agents.turn_form import MARK, USER, render
from rolecall.core.json_types import JsonObject
from rolecall.core.tags import visible
from rolecall.tools.call_parsing import OPEN, calls_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

NAME, KEY, VALUE, RESULT = "lookup", "word", "value0f1e", "result0f1e"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "The word."}},
            "required": [KEY],
        },
    },
}
TAGGED = re.compile(rf"{OPEN}\s*\{{")  # a call as agents with `tools.format: tags` write it
CALL_ID = "call00000"  # Mistral's templates take nine letters and digits


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The form in which a template writes the calls of tools and their results."""

    problem: str  # why `tools.format: native` cannot be used, or ""
    names_calls: bool = False  # whether results follow a message that names its calls
    writes_tags: bool = False  # whether calls are JSON in <tool_call> tags


def tool_form(tokenizer: Tokenizer) -> ToolForm:
    """Return the form of a tokenizer and the template that it has now."""
    return _tool_form(tokenizer, str(tokenizer.chat_template))


def call_message(name: str, *, arguments: JsonObject, number: int = 0) -> JsonObject:
    """Return a call as messages of chat templates hold it."""
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": f"call{number:05d}", "function": function}


@lru_cache(maxsize=64)
def _tool_form(tokenizer: Tokenizer, template: str) -> ToolForm:
    try:
        plain = render(tokenizer, [USER], asks=True)
        shown = render(tokenizer, [USER], asks=True, tools=[TOOL])
    except Exception as error:  # the boundary to templates, which raise whatever they like
        return ToolForm(f"the chat template takes no tools ({type(error).__name__})")
    if plain == shown:
        return ToolForm("the chat template shows the model no tools")
    written = _written_call(tokenizer, shown)
    if not written:
        return ToolForm("calls as the chat template writes them cannot be read")
    for names_calls in (False, True):
        if _takes_results(tokenizer, names_calls=names_calls):
            return ToolForm("", names_calls, writes_tags=bool(TAGGED.search(written)))
    return ToolForm("the chat template takes no results of tools")


def _written_call(tokenizer: Tokenizer, prompt: str) -> str:
    """Return a call as the template writes it, if it is read back with its name and argument."""
    call = call_message(NAME, arguments={KEY: VALUE})
    for content in ("", None):
        answer: JsonObject = {"role": "assistant", "content": content, "tool_calls": [call]}
        messages = [USER, answer]
        try:
            text = render(tokenizer, messages, asks=False, tools=[TOOL])
        except Exception:  # DeepSeek's takes no mapping, gpt-oss's no missing content
            continue
        written = text.removeprefix(prompt) if text.startswith(prompt) else _behind_user(text)
        ids = np.array(tokenizer(written, add_special_tokens=False)["input_ids"], dtype=np.int32)
        calls = calls_in(visible(spoken_text(tokenizer, ids[:0], ids)), "native")
        if [(one.name, one.arguments, one.problem) for one in calls] == [(NAME, {KEY: VALUE}, "")]:
            return written
    return ""


def _behind_user(text: str) -> str:
    return text.rpartition(str(USER["content"]))[2]


def _takes_results(tokenizer: Tokenizer, *, names_calls: bool) -> bool:
    """Return whether results of two turns in a row stand in the next prompt, behind those turns."""
    turn: JsonObject = {"role": "assistant", "content": MARK}
    if names_calls:
        calls = [call_message(NAME, arguments={KEY: MARK})]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
    result = {"role": "tool", "content": RESULT, "name": NAME, "tool_call_id": CALL_ID}
    try:
        text = render(tokenizer, [USER, turn, result, turn, result], asks=True, tools=[TOOL])
    except Exception:  # many templates want another order, or other keys
        return False
    return text.count(MARK) == text.count(RESULT) == 2
