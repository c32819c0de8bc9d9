"""Messages in, prompt ids out, through the model's own chat template.

An agent's own earlier turn enters the next prompt as the very ids that were sampled: the template
is rendered with a marker in its place, the text is cut there, and the ids are put in between.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase as Tokenizer

from rolecall.core import Ids, Message

# Llama templates print today's date unless told another; a prompt must not depend on the day.
TEMPLATE_DATE = "26 Jul 2024"
OPENED = re.compile(r"<think>\s*\Z")
MOST_OPENING = 16  # ids that `<think>` and the space behind it may be
KEPT = 256  # texts whose ids are remembered
NO_THOUGHT = re.compile(r"<think>\s*</think>\s*\Z")  # what some templates write of it later


def prompt_ids(
    tokenizer: Tokenizer,
    messages: list[Message],
    *,
    options: dict[str, object],
    tools: list[dict[str, Any]] | None = None,
) -> Ids:
    """[P] ids up to where the assistant starts to speak. `tools`: schemas for the template.

    user "2+2", assistant [15, 2] (2 = end token), user "sure?" becomes
    ids("<user>2+2</user><assistant>") + [15, 2] + ids("<user>sure?</user><assistant>").
    Raises ValueError if the template drops or rewrites an assistant message.
    """
    spliced = [message.tokens for message in messages if message.tokens is not None]
    marks = [f"\u2402{ordinal}\u2403" for ordinal in range(len(spliced))]
    names = iter(marks)
    shown = [
        {
            "role": message.role,
            "content": next(names) if message.tokens is not None else plain(tokenizer, message),
        }
        | ({"name": message.name} if message.name else {})
        for message in messages
    ]
    text = tokenizer.apply_chat_template(
        shown, tools=tools or None, tokenize=False, add_generation_prompt=True,
        date_string=TEMPLATE_DATE, **options,
    )  # fmt: skip
    opened = _opened(tokenizer, options) if spliced else ""
    pieces = []
    for mark, tokens in zip(marks, spliced, strict=True):
        before, found, text = text.partition(mark)
        if not found:
            raise ValueError("the chat template leaves out an earlier assistant message")
        if opened:
            before = NO_THOUGHT.sub("", before) + opened
        pieces += [encode(tokenizer, before), tokens]
        text = _without_end(tokenizer, text, tokens)
    pieces.append(encode(tokenizer, text))
    return np.concatenate(pieces).astype(np.int32)


def _opened(tokenizer: Tokenizer, options: dict[str, object]) -> str:
    """`<think>` where the template itself opens the thinking: an agent's words begin inside it."""
    if "<think>" not in str(tokenizer.chat_template):
        return ""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], tokenize=False, add_generation_prompt=True,
        date_string=TEMPLATE_DATE, **options,
    )  # fmt: skip
    found = OPENED.search(text)
    return found[0] if found else ""


def opened(tokenizer: Tokenizer, prompt: Ids) -> str:
    """`<think>` if that is how a prompt ends: the words that follow it are thinking."""
    if "<think>" not in str(tokenizer.chat_template):
        return ""
    return "<think>" if OPENED.search(tokenizer.decode(prompt[-MOST_OPENING:])) else ""


@lru_cache(maxsize=KEPT)
def encode(tokenizer: Tokenizer, text: str) -> Ids:
    """[N] ids, read-only: members of a group ask with the same text."""
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
    ids.flags.writeable = False
    return ids


def plain(tokenizer: Tokenizer, message: Message) -> str:
    """The content with control tokens broken up, so that no text can open or end a message."""
    content = message.content
    for token in tokenizer.all_special_tokens:
        content = content.replace(token, token[:1] + " " + token[1:])
    return content


def _without_end(tokenizer: Tokenizer, text: str, tokens: Ids) -> str:
    """The template ends the message itself; if the agent already did, once is enough."""
    end = tokenizer.decode(tokens[-1:]) if len(tokens) else ""
    is_control = end in tokenizer.all_special_tokens
    return text.removeprefix(end) if is_control and text.startswith(end) else text
