"""Finds the bare answers that the text of an agent or a data row states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal

from rolecall.core.tags import find_box, visible

AnswerForm = Literal["boxed", "marked", "last", "any"]
STATED = re.compile(r"answer\s*(?:is\b|:)[\s:*]*([^\n]+)", re.IGNORECASE)
NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")
NOTE = re.compile(r"\s*\((?:both|all|either|any)\b[^()]*accepted[^()]*\)\s*$", re.IGNORECASE)


def extract(text: str, *, form: AnswerForm = "boxed") -> str | None:
    r"""Return the answer that a text ends with after thinking, or None.

    extract(r"<think>\boxed{1}</think> so \boxed{\frac{1}{2}}.") -> r"\frac{1}{2}"
    extract("2 + 2 = 4, so it is 4 apples.", form="last") -> "4"

    `boxed`: its last complete box. `marked`: the box, else what stands after `####`, "Answer:" or
    "answer is". `last`: its last number. `any`: the box, else a mark, else the last number.
    """
    spoken = visible(text)
    if form == "last":
        return _last_number(spoken)
    value = find_box(spoken)
    if value is None and form != "boxed":
        value = _marked(spoken)
    if value is None and form == "any":
        value = _last_number(spoken)
    return value


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


def _marked(text: str) -> str | None:
    if "####" in text:
        lines = text.rpartition("####")[2].strip().splitlines()
        return lines[0].strip() if lines else None
    stated = STATED.findall(text)
    if stated and stated[-1].strip(" *."):
        return _without_dollars(stated[-1].strip(" *."))
    return None


def _last_number(text: str) -> str | None:
    numbers: list[str] = NUMBER.findall(text)
    return numbers[-1].rstrip(",") if numbers else None
