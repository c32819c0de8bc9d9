"""Compares the configs of two starts of a run, and says which keys may differ."""

from __future__ import annotations

from fnmatch import fnmatchcase

from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.references import written_keys
from rolecall.config.schema import Config
from rolecall.core.json_types import JsonObject, JsonValue

Changes = dict[str, list[JsonValue]]  # dotted key -> [old value, new value]

SERVER_KEYS = (
    "url", "key_env", "concurrency", "timeout_s", "request_s", "pause_s", "budget_tokens",
    "budget_usd",
)  # fmt: skip
# What a run may go on with otherwise, because no step that is done depends on it.
# The number of validation tasks is not among it: they are held out of what is trained on.
MAY_CHANGE = (
    "output", "trackers", "prices", "trainer.steps", "trainer.epochs", "trainer.save_every",
    "trainer.keep",
    *(f"evaluation.{name}" for name in EvaluationConfig.model_fields if name != "validation"),
    *(f"{place}.{name}" for place in ("engine", "policies.*.engine") for name in SERVER_KEYS),
)  # fmt: skip
UNNAMED_MAY_CHANGE = ("output", "trackers")  # of a run that is found by its recipe's name


def resolve_config(config: Config) -> JsonObject:
    """Return all keys of a config, with defaults and without references to other files."""
    return config.model_dump(mode="json")


def changes_between(old: Config, new: Config) -> Changes:
    """Return {dotted key: [old value, new value]} of all values that differ, as written."""
    changed = _differences(resolve_config(old), resolve_config(new))
    written = _differences(written_keys(old), written_keys(new))
    return {key: written.get(key, values) for key, values in changed.items()}


def _differences(old: JsonObject, new: JsonObject, *, prefix: str = "") -> Changes:
    """Return {dotted key: [old value, new value]} of all values that differ."""
    changes: Changes = {}
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changes |= _differences(a, b, prefix=f"{name}.")
        elif a != b:
            changes[name] = [a, b]
    return changes


def matches_any(key: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a dotted key is one of the patterns or lies below one.

    A `*` in a pattern stands for one part of the key.
    """
    parts = key.split(".")
    return any(
        len(parts) >= len(pattern) and all(map(fnmatchcase, parts, pattern))
        for pattern in (name.split(".") for name in patterns)
    )
