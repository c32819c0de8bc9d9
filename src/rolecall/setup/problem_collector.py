"""Collects problems, so that all of them are told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from rolecall.core.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class ProblemCollector:
    """Work that may fail with a ConfigError, and the problems so far."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of the work; None, and its problems noted, where it fails."""
        try:
            return work(*args, **kwargs)
        except ConfigError as error:
            self.note(error.problems)
            return None

    def note(self, problems: Iterable[str]) -> None:
        """Agents that share settings share their problems: each is told once."""
        for problem in problems:
            if problem not in self.problems:
                self.problems.append(problem)
