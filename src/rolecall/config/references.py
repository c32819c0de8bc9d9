"""Keeps what a config refers to as it was written: `${oc.env:KEY}` is a key, its value is a secret.

A run works with the values. What is written to disk has the references again, which are resolved
whenever the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

from omegaconf import Container, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from rolecall.core.errors import first_line
from rolecall.core.json_types import JsonObject, JsonValue

Place = tuple[str | int, ...]
References = dict[Place, tuple[str, Any]]  # what stands at a place, and its value as it is dumped
MARK = "${"
ESCAPED = re.compile(r"(\\*)\$\{")
_MISSING = object()
BROKEN = (InterpolationResolutionError, GrammarParseError)  # errors of a text that holds ${


class Referring(Protocol):
    """A config that remembers the references that it was written with."""

    _references: References

    def model_dump(self, *, mode: str) -> JsonObject: ...


def references_in(unresolved: Any, config: Referring) -> References:
    """Return the references of a config; `unresolved`: the mapping of which it was made."""
    texts = dict(_texts(unresolved))
    if not texts:
        return {}
    dumped = config.model_dump(mode="json")
    values = {path: (text, _value_at(dumped, path)) for path, text in texts.items()}
    return {path: pair for path, pair in values.items() if pair[1] is not _MISSING}


def written_keys(config: Referring) -> JsonObject:
    """Return all keys with references in place of the values that they had when it was loaded.

    A value that has been changed since stays. Other text is escaped, so that it is read as it is.
    """
    dumped: JsonObject = config.model_dump(mode="json")
    texts = {
        path: text
        for path, (text, value) in config._references.items()
        if _value_at(dumped, path) == value
    }
    return {key: _written(value, (key,), texts) for key, value in dumped.items()}


def problems_in(merged: Container) -> list[str]:
    """Return a line for each text whose references cannot be resolved, beginning with its key."""
    problems = []
    for path, _ in _texts(OmegaConf.to_container(merged, resolve=False)):
        here: Any = merged
        try:
            for key in path:
                here = here[key]
        except BROKEN as error:
            problems.append(describe(error, key=".".join(map(str, path))))
    return problems


def describe(error: OmegaConfBaseException, *, key: str = "") -> str:
    """Say what is wrong with a reference, and how to write the same characters as plain text."""
    words = first_line(error)
    if isinstance(error, InterpolationKeyError):
        reason = f"{words}: the config has no such key"
    elif "Environment variable" in words:
        name = words.partition("'")[2].partition("'")[0]
        default = f"${{oc.env:{name},DEFAULT}}"
        reason = f"the environment variable {name} is not set; set it, or write {default}"
    elif isinstance(error, GrammarParseError):
        reason = f"the text after ${{ is no reference ({words})"
    else:
        reason = words
    hint = r"where ${ is plain text, write \${ (inside double quotes \\${)"
    return f"{key or error.full_key}: {reason}; {hint}"


def _written(value: JsonValue, place: Place, texts: dict[Place, str]) -> JsonValue:
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
    for key in place:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return tree
