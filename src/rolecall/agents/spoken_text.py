"""Reads what a turn says from its tokens: the thought, the words, and the calls of tools.

Most models write all of it as text between tags. Two families write it with control tokens, which
are read here and become the same text: gpt-oss has channels, DeepSeek has frames of calls.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rolecall.agents.control_tokens import controls
from rolecall.core.tags import THINK_END, THINK_START
from rolecall.core.types import Ids
from rolecall.tools.call_parsing import write_call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

OPENED = re.compile(r"<think>\s*\Z")
MOST_OPENING = 16  # tokens that `<think>` and the space behind it may be
CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
# `to=functions.NAME` and the channel stand in either order, with the type of the content between.
HEADER = re.compile(r"(?P<header>[^<]*<\|channel\|>[^<]*(?:<\|constrain\|>[^<]*)?)<\|message\|>")
NAMED = re.compile(r"to=functions\.([^\s<]+)")
DEEPSEEK_CALL = re.compile(
    "<\uff5ctool\u2581call\u2581begin\uff5c>(?:function)?(?P<first>[^<]*)"
    "<\uff5ctool\u2581sep\uff5c>(?P<rest>.*?)<\uff5ctool\u2581call\u2581end\uff5c>",
    re.DOTALL,
)
FENCED = re.compile(r"(?P<name>[^\n]+)\n```json\n(?P<arguments>.*?)\n?```\Z", re.DOTALL)


def spoken_text(tokenizer: Tokenizer, prompt: Ids, tokens: Ids) -> str:
    """Return what a turn says; `<think>` stands first if the prompt has opened a thought."""
    template = str(tokenizer.chat_template)
    if CHANNEL in template and MESSAGE in template:
        return _read_channels(tokenizer.decode(tokens))
    start = find_opened_thought(tokenizer, prompt)
    if "\uff5ctool\u2581sep\uff5c" in template:
        raw = DEEPSEEK_CALL.sub(_read_deepseek, tokenizer.decode(tokens))
        return start + _without(raw, controls(tokenizer).special | _frames(template))
    return start + tokenizer.decode(tokens, skip_special_tokens=True)


def find_opened_thought(tokenizer: Tokenizer, prompt: Ids) -> str:
    """Return `<think>` if that is how a prompt ends: the words that follow it are a thought."""
    if "<think>" not in str(tokenizer.chat_template):
        return ""
    return "<think>" if OPENED.search(tokenizer.decode(prompt[-MOST_OPENING:])) else ""


def _read_channels(raw: str) -> str:
    """Return gpt-oss's analysis as a thought, its calls in tags, its final channel as words.

    `<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4` becomes
    `<think>Hm.</think>4`. Text outside of a channel stays as it is.
    """
    parts: list[str] = []
    for piece in re.split(r"<\|end\|>|<\|return\|>|<\|call\|>", raw):
        header = HEADER.search(piece)
        if header is None:
            parts.append(_without(piece, {"<|start|>"}))
            continue
        content, named = piece[header.end() :], NAMED.search(header["header"])
        if named:
            parts.append(write_call(named[1], content))
        elif f"{CHANNEL}final" in header["header"] or "commentary" in header["header"]:
            parts.append(content)
        else:
            parts.append(f"{THINK_START}{content}{THINK_END}")
    text = "".join(parts)
    # Several thoughts are one, as every other model writes them.
    return text.replace(THINK_END + THINK_START, "\n")


def _read_deepseek(call: re.Match[str]) -> str:
    """Return a call of DeepSeek in tags: the name stands before or behind the separator."""
    if fenced := FENCED.search(call["rest"]):
        return write_call(fenced["name"], fenced["arguments"])
    return write_call(call["first"], call["rest"])


def _frames(template: str) -> frozenset[str]:
    return frozenset(re.findall("<\uff5ctool\u2581[^>]*\uff5c>", template))


def _without(text: str, names: frozenset[str] | set[str]) -> str:
    for name in names:
        text = text.replace(name, "")
    return text
