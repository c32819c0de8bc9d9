"""A config in; which algorithm trains which agents out."""

from __future__ import annotations

from typing import Any

from rolecall.algorithms.base import Algorithm
from rolecall.config import registry
from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config, Named


def make_algorithms(config: Config) -> dict[str, Algorithm]:
    """The algorithm of each trainable agent; agents of equal settings share one object."""
    made: dict[str, Algorithm] = {}
    found = {}
    for name, agent in config.team.items():
        if agent.trainable:
            named = agent.algorithm or config.algorithm
            key = "algorithm" if agent.algorithm is None else f"team.{name}.algorithm"
            found[name] = made.setdefault(repr(named), _make_algorithm(config, named, key))
        elif agent.algorithm is not None:
            raise ConfigError(f"team.{name}.algorithm has no effect: it is not trainable")
    if found and all(config.team[name].algorithm for name in found):
        raise ConfigError("algorithm has no effect: every trainable agent has its own")
    return found


def _make_algorithm(config: Config, named: Named, key: str) -> Algorithm:
    kind = registry.resolve("algorithm", named.name, key=f"{key}.name")
    options = check_options(key, named, kind, skip=0)
    algorithm: Algorithm = kind(**options)
    longest = max(agent.sampling.max_tokens for agent in config.team.values())
    read = ["longest"] + (["turn_length"] if algorithm.agg == "turn_sum" else [])
    missing = {name: longest for name in read if getattr(algorithm, name, 0) is None}
    return algorithm.model_copy(update=missing) if missing else algorithm


def check_options(key: str, named: Named, call: Any, *, skip: int) -> dict[str, Any]:
    """The options of a workflow, environment or algorithm with the types its signature asks for."""
    return registry.checked_options(call, named.options, key=key, skip=skip)
