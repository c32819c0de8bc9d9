"""Decides which algorithm trains which agents."""

from __future__ import annotations

from rolecall.algorithms.base import Algorithm
from rolecall.config.schema import Config, Named
from rolecall.core.errors import ConfigError
from rolecall.setup.component import resolve_component
from rolecall.setup.problem_collector import ProblemCollector


def make_algorithms(config: Config) -> dict[str, Algorithm]:
    """Return the algorithm of each trainable agent; agents of equal settings share one object.

    Raises ConfigError with all problems.
    """
    attempts = ProblemCollector()
    by_options: dict[str, Algorithm | None] = {}
    by_agent: dict[str, Algorithm | None] = {}
    for name, agent in config.team.items():
        if agent.trainable:
            named = agent.algorithm or config.algorithm
            key = "algorithm" if agent.algorithm is None else f"team.{name}.algorithm"
            if repr(named) not in by_options:
                new = attempts.run(_make_algorithm, config, named, key)
                by_options[repr(named)] = next(
                    (old for old in by_options.values() if old == new), new
                )
            by_agent[name] = by_options[repr(named)]
        elif agent.algorithm is not None:
            attempts.note([f"team.{name}.algorithm has no effect: it is not trainable"])
    if by_agent and all(config.team[name].algorithm for name in by_agent):
        attempts.note(["algorithm has no effect: every trainable agent has its own"])
    if attempts.problems:
        raise ConfigError(*attempts.problems)
    algorithms = {name: algorithm for name, algorithm in by_agent.items() if algorithm is not None}
    for algorithm in algorithms.values():
        algorithm.join_team(algorithms)
    return algorithms


def _make_algorithm(config: Config, named: Named, key: str) -> Algorithm:
    algorithm: Algorithm = resolve_component("algorithm", named, key=key).make()
    inner = getattr(algorithm, "inner", None)
    if isinstance(inner, Named):
        inner_algorithm = _make_algorithm(config, inner, f"{key}.inner")
        try:
            return algorithm.wrap(inner_algorithm)
        except ValueError as error:
            raise ConfigError(f"{key}.inner: {inner.name}: {error}") from error
    longest = max(agent.sampling.max_tokens for agent in config.team.values())
    read = ["longest"] + (["turn_length"] if getattr(algorithm, "agg", "") == "turn_sum" else [])
    missing = {name: longest for name in read if getattr(algorithm, name, 0) is None}
    return algorithm.model_copy(update=missing) if missing else algorithm
