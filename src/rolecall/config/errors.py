"""Collects the problems of a config that a user can put right, each a line that names its key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rolecall.config.moved_keys import find_successor
from rolecall.config.other_names import suggest_option
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonValue

# Errors of pydantic's for values of the wrong shape.
MAPPINGS = (
    "model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type",
    "union_tag_not_found",
)  # fmt: skip
LISTS = ("list_type", "tuple_type", "set_type", "frozen_set_type")


def explain(
    error: ValidationError, model: type[BaseModel], given: JsonValue, *, prefix: str = ""
) -> ConfigError:
    """Explain pydantic's errors about `given`, as in `policies.small.optimiser: unknown key; did
    you ...`.

    Of the branches of a union that all fail, the first one speaks that a mapping can be of.
    """
    problems: dict[str, str] = {}
    errors = error.errors()
    places = [_place(item, given) for item in errors]
    for item, path in zip(errors, places, strict=True):
        inside = any(other[: len(path)] == path and other != path for other in places)
        if inside and isinstance(item["input"], Mapping):
            continue  # an entry of this mapping is what is wrong
        key = ".".join([prefix, *path] if prefix else path)
        problems.setdefault(key, f"{key}: {_said(item, model, path, key)}")
    return ConfigError(*problems.values())


def wrong_entries(error: ValidationError, given: JsonValue) -> Iterator[list[str]]:
    """Yield the place of each wrong entry; what is missing has no place."""
    for item in error.errors():
        if item["type"] != "missing":
            yield _place(item, given)


def _place(found: ErrorDetails, given: Any) -> list[str]:
    """Return the path of an entry in the input, without pydantic's names for branches of unions."""
    path: list[str] = []
    here = given
    for key in found["loc"]:
        inside = range(len(here)) if isinstance(here, list) else here
        if isinstance(here, Mapping | list) and key in inside:
            here = here[key]  # type: ignore[index]
            path.append(str(key))
        elif found["type"] == "missing" and key == found["loc"][-1]:
            path.append(str(key))
    return path


def _said(found: ErrorDetails, model: type[BaseModel], place: list[str], key: str) -> str:
    if found["type"] == "extra_forbidden":
        keys = _keys(model, place[:-1])
        if answer := find_successor(key, keys):
            return answer
        if "." in place[-1]:
            return f"a key with dots is for the command line; in a file write {_nested(place[-1])}"
        if not keys and (hint := suggest_option(place[-1])):
            return f"unknown key; {hint}"
        if not keys:
            return f"unknown key; {'.'.join(key.split('.')[:-1])} takes no options, remove it"
        if place[-1] in keys:  # of another branch of the section, which pydantic calls by name
            branch, section = found["loc"][-2], ".".join(place[:-1])
            return f"unknown key where {section}.name is {branch}; remove it, or name another"
        parts = [parent for parent in keys if parent != "stages"]  # which have keys of all parts
        inside = {key: parent for parent in parts for key in _keys(model, [*place[:-1], parent])}
        if place[-1] not in inside and (hint := suggest_option(place[-1])):
            return f"unknown key; {hint}"
        near = difflib.get_close_matches(place[-1], keys, n=3, cutoff=0.5)
        if not difflib.get_close_matches(place[-1], near, cutoff=0.8):  # it may be one level deeper
            deeper = difflib.get_close_matches(place[-1], inside, n=1, cutoff=0.8)
            near = [f"{inside[key]}.{key}" for key in deeper] or near
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(keys)}"
        return f"unknown key; {hint}"
    if found["type"] == "missing":
        return "missing"
    message = _shape(found, model, place) or found["msg"].removeprefix("Value error, ")
    return f"{message} (it is {_short(found['input'])})"


def _shape(found: ErrorDetails, model: type[BaseModel], place: list[str]) -> str:
    """Return what to write where a value has the wrong shape; "" where pydantic's words are clear.

    For these pydantic names the Python class that it would make of the value.
    """
    kind = found["type"]
    if kind == "union_tag_invalid":
        tags = found["ctx"]["expected_tags"].replace("'", "")
        return f"no such name; write one of: {tags}"
    if kind in LISTS:
        return "write a list"
    if kind not in MAPPINGS:
        return ""
    keys = _keys(model, place)
    if "name" in keys:
        return "write a name, or a mapping with `name`"
    return f"write a mapping with any of the keys {', '.join(keys)}" if keys else "write a mapping"


def _nested(key: str) -> str:
    """Return a dotted key as a mapping in YAML: `critics: {agent: ...}`."""
    first, *rest = key.split(".")
    return f"{first}: {''.join(f'{{{inner}: ' for inner in rest)}...{'}' * len(rest)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(model: type[BaseModel], place: list[str]) -> list[str]:
    """Return the keys that are known where an unknown one was found."""
    current: list[Any] = [model]  # more than one: branches of a union
    for step in place:
        inside: list[Any] = []
        for one in current:
            if isinstance(one, type) and issubclass(one, BaseModel):
                field = one.model_fields.get(step)
                if field is None and step.isdigit():  # an element of a list of these
                    inside.append(one)
                inside += _branches(field.annotation) if field else []
            elif arguments := get_args(one):  # a mapping of names to models
                inside += _branches(arguments[-1])
        current = inside
    models = [one for one in current if isinstance(one, type) and issubclass(one, BaseModel)]
    return list(dict.fromkeys(key for one in models for key in one.model_fields))


def _branches(annotation: Any) -> list[Any]:
    """Return the classes and mappings that a value may have as its type."""
    if isinstance(annotation, type) or get_origin(annotation) is dict:
        return [annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    return [branch for one in arguments for branch in _branches(one)]
