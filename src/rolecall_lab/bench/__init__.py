"""Declares a benchmark: two sides that do the same work, and how fast each of them did it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one side."""

    value: float
    """In the benchmark's unit."""
    facts: dict[str, float] = field(default_factory=dict)
    """What every side must find alike, e.g. {"sampled tokens": 21034}."""


Measure = Callable[[int], Measured]  # number of the run, which draws its tokens -> what came out
SetUp = Callable[[Any, Path], Measure]  # (the benchmark's size, a folder for models) -> Measure


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One work, and where the sides that can do it are."""

    name: str
    unit: str
    """More is better wherever there is a peer."""
    work: str
    """What is done, in a sentence or two."""
    full: Any
    """The size that is reported."""
    smoke: Any
    """The same work in a second or two; its numbers mean nothing."""
    ours: str
    """`module:function` of our SetUp; child processes import it."""
    peers: dict[str, str] = field(default_factory=dict)
    """Name of a peer -> `module:function` of its SetUp."""

    def side(self, name: str) -> str:
        """Import path of "ours" or of a peer."""
        return self.ours if name == "ours" else self.peers[name]
