"""Keeps what a config refers to as it was written: `${oc.env:KEY}` is a key, its value is a secret.

A run works with the values. What is written to disk has the references again, which are resolved
whenever the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.config.schema import Config

Place = tuple[str | int, ...]
References = dict[Place, tuple[str, Any]]  # what stands at a place, and its value as it is dumped
MARK = "${"
ESCAPED = re.compile(r"(\\*)\$\{")
_MISSING = object()


def references_in(unresolved: Any, config: Config) -> References:
    """Return the references of a config; `unresolved`: the mapping of which it was made."""
    texts = dict(_texts(unresolved))
    if not texts:
        return {}
    dumped = config.model_dump(mode="json")
    found = {place: (text, _value_at(dumped, place)) for place, text in texts.items()}
    return {place: pair for place, pair in found.items() if pair[1] is not _MISSING}


def as_written(config: Config) -> dict[str, Any]:
    """Return all keys with references in place of the values that they had when it was loaded.

    A value that has been changed since stays. Other text is escaped, so that it is read as it is.
    """
    dumped: dict[str, Any] = config.model_dump(mode="json")
    texts = {
        place: text
        for place, (text, value) in config._references.items()
        if _value_at(dumped, place) == value
    }
    return {key: _written(value, (key,), texts) for key, value in dumped.items()}


def _written(value: Any, place: Place, texts: dict[Place, str]) -> Any:
    if place in texts:
        return texts[place]
    if isinstance(value, dict):
        return {key: _written(each, (*place, key), texts) for key, each in value.items()}
    if isinstance(value, list):
        return [_written(each, (*place, number), texts) for number, each in enumerate(value)]
    if isinstance(value, str):
        return ESCAPED.sub(lambda match: match[1] * 2 + r"\${", value)
    return value


def _texts(tree: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    if isinstance(tree, str) and MARK in tree:
        yield place, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _texts(value, (*place, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _texts(value, (*place, number))


def _value_at(tree: Any, place: Place) -> Any:
    for part in place:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return tree
