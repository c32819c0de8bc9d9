"""Reads answers that are imitated in parts: [{"text": .., "weight": 0 or 1}, ..].

A part of weight 0 is a wrong step, which stays in the context of what follows it (STeP,
2505.20023). The answer is tokenised as one text, as a model would say it, and a token is imitated
only if it lies wholly in parts of weight 1. The end token belongs to the last part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.control_tokens import controls
from rolecall.agents.turn_form import turn_form
from rolecall.agents.written_turn import WrittenTurn
from rolecall.core.json_types import JsonValue
from rolecall.core.tags import THINK_END, THINK_START
from rolecall.core.types import Floats, Ids

OWN = (THINK_START, THINK_END, "<tool_call>", "</tool_call>")  # what an answer may be made of
KEYS = {"type", "text", "weight"}


@dataclass(frozen=True, slots=True)
class WeightedSpan:
    """A stretch of an answer."""

    text: str
    imitated: bool


def is_parts(given: JsonValue) -> bool:
    """Return whether it is meant for a list of parts, and not for a text or a list of chat
    messages.
    """
    return isinstance(given, list) and not any(
        isinstance(entry, dict) and "role" in entry for entry in given
    )


def read_spans(given: list[Any], place: str) -> list[WeightedSpan]:
    """Read the weighted parts of an answer; raises ValueError that names the first invalid part."""
    for number, span in enumerate(given, start=1):
        is_valid = isinstance(span, dict) and set(span) <= KEYS
        if not is_valid or span.get("type") not in (None, "text") or not _is_text(span.get("text")):
            raise ValueError(
                f"{place}: part {number} of an answer: write a text and its weight, "
                f'{{"text": .., "weight": 0 or 1}} (it is {span!r})'
            )
        if span.get("weight") not in (None, 0, 1):
            raise ValueError(
                f"{place}: part {number} of an answer: weight: write 0 or 1 "
                f"(it is {span['weight']!r})"
            )
    return [WeightedSpan(span["text"], span.get("weight") != 0) for span in given]


def _is_text(given: JsonValue) -> bool:
    return isinstance(given, str) and bool(given)


def join_parts(tokenizer: Tokenizer, parts: Sequence[WeightedSpan], place: str) -> str:
    """Return the words of an answer. Raises ValueError where two parts forge a control token."""
    forbidden = controls(tokenizer)
    whole = "".join(forbidden.broken(span.text, own=OWN) for span in parts)
    if forbidden.broken(whole, own=OWN) != whole:
        raise ValueError(f"{place}: two parts of an answer meet within a control token: {whole!r}")
    return whole


def tokenise_parts(
    tokenizer: Tokenizer, parts: Sequence[WeightedSpan], written: WrittenTurn, place: str
) -> tuple[Ids, Floats]:
    """Tokens [T] of an answer, its end token included, and 1 for those that are imitated [T].

    ["ab" 0, "cd" 1] with tokens "a", "bc", "d" and the end -> [0, 0, 1, 1]. What the template
    writes before the words belongs to the first part, what it writes after them to the last one.
    Raises ValueError where no token can be imitated, and where the template changes the words.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"{place}: answers with weights need a fast tokenizer (one with offset mapping)"
        )
    forbidden = controls(tokenizer)
    texts = [forbidden.broken(span.text, own=OWN) for span in parts]
    if "".join(texts) != written.words:
        raise ValueError(
            f"{place}: the chat template changes the words of this answer; write it without parts"
        )
    anchor = turn_form(tokenizer).end
    skipped = len(tokenizer(anchor, add_special_tokens=False)["input_ids"])
    encoding = tokenizer(
        anchor + written.text, add_special_tokens=False, return_offsets_mapping=True
    )
    lengths = [len(anchor) + len(written.before), *map(len, texts), len(written.after)]
    weighted = [parts[0], *parts, parts[-1]]
    imitated = np.concatenate(
        [np.full(size, span.imitated) for size, span in zip(lengths, weighted, strict=True)]
    )
    weights, before = [], 0
    for token, (start, end) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
        # Some tokenizers leave a word's space out of its token's place: it is between two places.
        # That of a token of spaces alone is empty; at the beginning it does not say where they end.
        if start == end <= before:
            end = before + max(1, len(tokenizer.decode([token])))
        start = min(start, before)
        weights.append(float(imitated[start:end].all()))
        before = max(before, end)
    ids = np.array(encoding["input_ids"][skipped:], dtype=np.int32)
    if not any(weights[skipped:]):
        raise ValueError(f"{place}: no token of the answer lies wholly in parts of weight 1")
    return ids, np.array(weights[skipped:], dtype=np.float32)
