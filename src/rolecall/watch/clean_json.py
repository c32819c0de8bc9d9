"""Reads JSON of runs into values that can be sent on: no half of a surrogate pair is in them."""

from __future__ import annotations

import json
import math
from typing import Any

from rolecall.core.json_types import JsonObject
from rolecall.core.tags import encodable

ESCAPED_SURROGATE = "\\ud"


def load_clean(text: str) -> Any:
    """Return what a text of JSON holds, in which `?` stands for what UTF-8 cannot hold.

    Raises ValueError for a text that is no JSON.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return clean(value) if ESCAPED_SURROGATE in text.lower() else value


def load_object(text: str | None) -> JsonObject:
    """Return the object that a text of JSON holds; {} for any other text."""
    try:
        value = load_clean(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def clean(value: Any) -> Any:
    """Return a value of JSON or YAML with `?` for what UTF-8 cannot hold, in all of its texts.

    Names of keys are texts: in YAML they can also be numbers.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [clean(one) for one in value]
    if isinstance(value, dict):
        return {encodable(str(name)): clean(one) for name, one in value.items()}
    return value


def list_objects(value: Any) -> list[JsonObject]:
    """Return the objects of a list; none of a value that is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def finite(value: object) -> float | None:
    """Return a number as a float; None for NaN, infinities and whatever is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def shorten(text: str, most: int = 160) -> str:
    """Return a text on one line, cut after `most` characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
