"""Answers an option that a command does not have with the override that is meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from rolecall.config.errors import _branches
from rolecall.config.other_names import OTHER_NAMES
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError

DEPTH = 5  # of a key
# Where several sections have a key of that name, the one that is meant most often.
FIRST = ("trainer", "rollout", "learner", "engine", "team", "policies")


def check_options(arguments: list[str], command: Any) -> None:
    """Refuse options that `command`, click's group of all commands, does not know.

    Raises ConfigError for an option that is a key of a config: `--steps 3`.
    """
    words = list(arguments)
    while hasattr(command, "commands"):
        name = next((word for word in words if not word.startswith("-")), None)
        inner = command.commands.get(name or "")
        if inner is None:
            return
        words, command = words[words.index(name or "") + 1 :], inner
    if not any(parameter.name == "overrides" for parameter in command.params):
        return
    names = {option for parameter in command.params for option in parameter.opts}
    for number, word in enumerate(words):
        option, _, value = word.partition("=")
        if not option.startswith("--") or option in names or option == "--help":
            continue
        key = key_named(option.removeprefix("--").replace("-", "_"))
        if key:
            following = words[number + 1] if number + 1 < len(words) else ""
            value = value or ("" if following.startswith("-") else following) or "VALUE"
            raise ConfigError(f"{option}: no such option; write {key}={value}")


def key_named(name: str) -> str:
    """Return the key of a config with this last part, or what another library's is here; or ""."""
    keys = [key for key in _keys(Config) if key.rpartition(".")[2] == name]
    if keys:
        return min(keys, key=lambda key: (_place(key), key.count(".")))
    return OTHER_NAMES[name][1] if name in OTHER_NAMES else ""


def _place(key: str) -> int:
    first = key.partition(".")[0]
    return FIRST.index(first) if first in FIRST else len(FIRST)


def _keys(model: Any, prefix: str = "", depth: int = 1) -> Iterator[str]:
    """Yield all keys below a section, NAME for names that a user gives."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key
        if depth == DEPTH or name == "stages":
            continue
        for branch in _branches(field.annotation):
            if isinstance(branch, type) and issubclass(branch, BaseModel):
                yield from _keys(branch, f"{key}.", depth + 1)
            elif arguments := get_args(branch):
                for inner in _branches(arguments[-1]):
                    if isinstance(inner, type) and issubclass(inner, BaseModel):
                        yield from _keys(inner, f"{key}.NAME.", depth + 2)
