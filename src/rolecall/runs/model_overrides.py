"""Puts models from the command line in the place of a team's own, as overrides of a config."""

from __future__ import annotations

import json
from pathlib import Path

from rolecall.config.load import load
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError, nearest


def add_models(
    file: Path, overrides: list[str], *, all_of_them: str | None, given: list[str]
) -> list[str]:
    """Return the overrides with further ones that set the bases of policies.

    `all_of_them` becomes the base of every policy, and each POLICY=MODEL of `given` that of one.
    Raises ConfigError for an unknown policy.

    A policy whose server takes text has no base, so it keeps its own model.
    """
    config = load(file, overrides)
    named = dict(_pair(config, one) for one in given)
    bases = {} if all_of_them is None else dict.fromkeys(_with_bases(config), all_of_them)
    bases |= named
    return [
        *overrides,
        *(f"policies.{name}.base={json.dumps(base)}" for name, base in sorted(bases.items())),
    ]


def _with_bases(config: Config) -> list[str]:
    names = [name for name in config.policies if not config.takes_text(name)]
    if not names:
        raise ConfigError("--recipe: servers sample all policies of this team; it takes no model")
    return names


def _pair(config: Config, given: str) -> tuple[str, str]:
    policy, equals, model = given.partition("=")
    if not equals or not model:
        raise ConfigError(f"--model {given}: write POLICY=MODEL, e.g. solver=Qwen/Qwen3-4B")
    if policy not in config.policies:
        near = nearest(policy, list(config.policies))
        raise ConfigError(f"--model {given}: there is no policy {policy!r}; {near}")
    if config.takes_text(policy):
        raise ConfigError(
            f"--model {given}: a server samples this policy; "
            f"set policies.{policy}.engine.model instead"
        )
    return policy, model
