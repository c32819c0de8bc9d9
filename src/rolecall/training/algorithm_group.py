"""An algorithm, the agents whose turns it trains, and its critic."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rolecall.algorithms.base import Algorithm
from rolecall.types import Episode


class Critic(Protocol):
    """Expects rewards; the algorithm that needs it says what it should have expected."""

    def annotate(self, episodes: list[Episode]) -> None: ...
    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


@dataclass(slots=True)
class AlgorithmGroup:
    """An algorithm and the agents whose turns it trains."""

    algorithm: Algorithm
    agents: frozenset[str]
    critic: Critic | None = None
    seen: list[Episode] = field(default_factory=list)  # of this step, as its critic noted on them
