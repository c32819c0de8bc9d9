"""Holds an algorithm, the agents whose turns it trains, and its critic."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecall.algorithms.base import Algorithm
from rolecall.interfaces.critic import Critic
from rolecall.types import Episode


@dataclass(slots=True)
class AlgorithmGroup:
    """An algorithm and the agents whose turns it trains."""

    algorithm: Algorithm
    agents: frozenset[str]
    critic: Critic | None = None
    seen: list[Episode] = field(default_factory=list)  # of this step, as its critic noted on them
