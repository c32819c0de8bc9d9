"""Finds the bare answers that the text of an agent or a data row states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from rolecall.core.tags import visible

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is content
TOKEN = re.compile(r"[^\s{}$]+")
STATED = re.compile(r"answer\s*(?:is\b|:)[\s:*]*([^\n]+)", re.IGNORECASE)
NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")
NOTE = re.compile(r"\s*\((?:both|all|either|any)\b[^()]*accepted[^()]*\)\s*$", re.IGNORECASE)


def extract(text: str, *, fallback: bool = False) -> str | None:
    r"""Return the answer that a text ends with: its last complete box after thinking, or None.

    extract(r"<think>\boxed{1}</think> so \boxed{\frac{1}{2}}.") -> r"\frac{1}{2}"

    With `fallback` a text without a box may also state its answer after `####`, after
    "Answer:" or "answer is", or as its last number.
    """
    spoken = visible(text)
    closings = _closings(spoken)
    for box in reversed(list(BOX.finditer(spoken))):
        start = box.end()
        if start in closings:
            return spoken[start + 1 : closings[start]].strip()
        token = TOKEN.match(spoken, start)
        if token:
            return token.group().rstrip(".,;:*)")
    return _stated(spoken) if fallback else None


def references(truth: object) -> list[str]:
    """Return every accepted answer of a row; an answer equal to any of them is correct.

    references("080 or 081 (both were accepted)") -> ["080", "081"]
    references("6 + 4 = 10 apples.\n#### 1,010") -> ["1010"]
    references([142.0, "$\\pi$"]) -> ["142", "\\pi"]

    Raises ValueError for a truth that holds no answer.
    """
    accepted = list(_references(truth))
    if not accepted:
        raise ValueError(f"truth {truth!r} holds no answer")
    return accepted


def _references(truth: object) -> Iterator[str]:
    if hasattr(truth, "tolist"):  # numpy and arrow values, as parquet readers return them
        truth = truth.tolist()
    if isinstance(truth, (list, tuple)):
        for element in truth:
            yield from _references(element)
    elif isinstance(truth, (int, float)) and not isinstance(truth, bool):
        if not math.isfinite(truth):
            raise ValueError(f"truth {truth!r} is not a finite number")
        yield str(int(truth)) if truth == int(truth) else repr(truth)
    elif isinstance(truth, str):
        yield from _accepted(truth)
    else:
        raise ValueError(f"truth {truth!r} is {type(truth).__name__}, not text, number or list")


def _accepted(truth: str) -> Iterator[str]:
    text = truth.strip()
    if "####" in text:
        text = text.rpartition("####")[2].replace(",", "")
    boxed = extract(text)
    text = _without_dollars(text if boxed is None else boxed)
    bare = NOTE.sub("", text)
    # Without the note "x=1 or x=2" is one answer with two solutions, not two answers.
    parts = re.split(r",\s*(?:or\s+)?|\s+or\s+", bare) if bare != text else [bare]
    yield from (item.strip() for item in parts if item.strip())


def _without_dollars(text: str) -> str:
    text = text.strip()
    for mark in ("$$", "$"):
        inner = text[len(mark) : -len(mark)]
        if len(text) > 2 * len(mark) and text == mark + inner + mark and "$" not in inner:
            return inner.strip()
    return text


def _closings(text: str) -> dict[int, int]:
    """Position of each opening brace that is closed -> position of its closing one."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs


def _stated(text: str) -> str | None:
    if "####" in text:
        lines = text.rpartition("####")[2].strip().splitlines()
        return lines[0].strip() if lines else None
    stated = STATED.findall(text)
    if stated and stated[-1].strip(" *."):
        return _without_dollars(stated[-1].strip(" *."))
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else None
