"""Turns what a Python program passes to `rolecall.train` into what a config can hold.

A loaded model with its tokenizer becomes a folder, a list of environments a mixture of them, and
functions, classes and objects become names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rolecall.config.live_objects import Names, name_objects
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject

KEY = "environment"


class LiveConfig:
    """Names the objects of one config and of its overrides."""

    def __init__(self) -> None:
        self._names = Names()

    def convert(self, config: Mapping[str, Any]) -> JsonObject:
        """Return a config of plain values. Raises ConfigError for what cannot stand in one."""
        plain: JsonObject = name_objects(_save_models(config, ()), self._names)
        if isinstance(plain.get(KEY), list):
            plain[KEY] = _mix(plain[KEY])
        return plain

    def overrides(self, given: Mapping[str, Any] | Iterable[str]) -> list[str]:
        """Return overrides as a list: {"trainer.steps": 5} -> ["trainer.steps=5"]."""
        if not isinstance(given, Mapping):
            return list(given)
        return list_overrides(self.convert(given), is_mixed=_is_list(given))

    def sections(self, given: Mapping[str, Any]) -> list[str]:
        """Return sections as overrides: {"trainer": {"steps": 5}} -> ["trainer.steps=5"]."""
        return list_overrides(_dotted(self.convert(given)), is_mixed=_is_list(given))


def list_overrides(flat: Mapping[str, Any], *, is_mixed: bool = False) -> list[str]:
    """Return overrides of dotted keys; a mixture replaces the environment that was there."""
    cleared = [f"{KEY}={{}}"] if is_mixed else []
    return [*cleared, *(f"{key}={json.dumps(value)}" for key, value in flat.items())]


def _is_list(given: Mapping[str, Any]) -> bool:
    return isinstance(given.get(KEY), list | tuple)


def _dotted(sections: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Return a mapping with dotted keys: {"trainer": {"steps": 5}} -> {"trainer.steps": 5}."""
    flat: JsonObject = {}
    for name, value in sections.items():
        if isinstance(value, Mapping) and value:
            flat |= _dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _mix(parts: list[Any]) -> Any:
    """Return a list of environments as a mixture with equal weights, or the only one of them."""
    if not parts:
        raise ConfigError(f"{KEY}: the list is empty; pass an environment, or several")
    if len(parts) == 1:
        return parts[0]
    mixed: JsonObject = {}
    for environment in parts:
        is_section = isinstance(environment, Mapping)
        section = environment if is_section else {"name": environment}
        if not isinstance(section.get("name"), str):
            raise ConfigError(
                f"{KEY}: {environment!r} names no environment; pass a name, a class, an object, or "
                '{"name": ..., "weight": ...}'
            )
        base = section["name"].rpartition(":")[2].lower()
        name, number = base, 1
        while name in mixed:
            number += 1
            name = f"{base}-{number}"
        mixed[name] = section
    return {"name": "mixed", "of": mixed}


def _save_models(value: Any, path: tuple[str, ...]) -> Any:
    """Return a config with a folder in the place of each loaded model and its tokenizer."""
    key = ".".join(path)
    if isinstance(value, Mapping):
        return {name: _save_models(each, (*path, str(name))) for name, each in value.items()}
    if isinstance(value, list | tuple) and any(_is_saved(each) for each in value):
        model, tokenizer = value if len(value) == 2 else (None, None)
        if not (hasattr(model, "state_dict") and hasattr(tokenizer, "get_vocab")):
            raise ConfigError(f"{key}: pass (model, tokenizer), the two objects of transformers")
        return str(_save(model, tokenizer, key))
    if isinstance(value, list | tuple):
        return [_save_models(each, path) for each in value]
    if hasattr(value, "state_dict") and _is_saved(value):
        raise ConfigError(
            f"{key}: a {type(value).__name__} alone has no tokenizer; pass (model, tokenizer)"
        )
    return value


def _is_saved(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "save_pretrained")


def _save(model: Any, tokenizer: Any, key: str) -> Path:
    from rolecall.models.saved_base import save_base

    try:
        return save_base(model, tokenizer)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{key}: {error}") from error
