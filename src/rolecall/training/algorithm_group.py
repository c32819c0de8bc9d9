"""Holds an algorithm, the agents whose turns it trains, and its critics."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecall.algorithms.base import Algorithm
from rolecall.interfaces.critic import Critic, Discriminator
from rolecall.types import Episode


@dataclass(slots=True)
class AlgorithmGroup:
    """An algorithm and the agents whose turns it trains."""

    algorithm: Algorithm
    agents: frozenset[str]
    critic: Critic | None = None
    discriminator: Discriminator | None = None  # which pays its turns
    seen: list[Episode] = field(default_factory=list)  # of this step, as its critics noted on them

    @property
    def critics(self) -> dict[str, Critic]:
        """Those that are no value heads of policies, by the names of a config."""
        found = {
            self.algorithm.critic: self.critic,
            self.algorithm.discriminator: self.discriminator,
        }
        return {name: one for name, one in found.items() if name is not None and one is not None}
