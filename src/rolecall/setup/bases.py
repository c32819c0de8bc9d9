"""Lists the bases that a config names, and fetches those with a short name."""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.models.known_models import KNOWN_MODELS


def list_bases(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each base that a config names."""
    for name, policy in config.policies.items():
        if policy.base:
            yield f"policies.{name}.base", policy.base
        if policy.reference not in (None, "initial"):
            yield f"policies.{name}.reference", str(policy.reference)
    for name, critic in config.critics.items():
        if critic.base:
            yield f"critics.{name}.base", critic.base


def fetch_known_bases(config: Config) -> None:
    """Download the small models that a config names by a short name and that are not here yet.

    Raises ConfigError with a line for each that cannot be had.
    """
    problems = []
    for key, base in list_bases(config):
        if base in KNOWN_MODELS:
            from rolecall.models.fetching import fetch_model  # with transformers

            try:
                fetch_model(base)
            except ValueError as error:
                problems.append(f"{key}: {error}")
    if problems:
        raise ConfigError(*problems)
