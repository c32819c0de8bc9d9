"""GRPO (2402.03300): an attempt is worth what it earned above the other attempts at its task.

Degenerate: a group of one, or with equal outcomes, gets exactly 0.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import Count, Norm, compare, standardised
from rolecall.algorithms.losses import Aggregation
from rolecall.types import Episode


class Grpo(Algorithm):
    """Advantage: the outcome, centred and divided by the spread of its task's attempts."""

    keys: ClassVar[tuple[str, ...]] = ("task",)
    norm: ClassVar[Norm] = staticmethod(standardised)

    in_credit: ClassVar[frozenset[str]] = frozenset({"count"})

    count: Count = "episode_agent"
    """What is one sample of mean and spread: a turn, or an agent's share of an episode."""
    agg: Aggregation = "turn_mean"
    """Mean over all sampled tokens, mean of the turns' means, or sum of a turn over a constant."""

    def credit(self, episodes: list[Episode]) -> None:
        """Rewards [1, 1, 0, 0] -> [.866, .866, -.866, -.866] on every token of the attempts."""
        compare(
            self.credited_turns(episodes),
            keys=self.keys,
            count=self.count,
            norm=type(self).norm,
            own=self.own_reward,
        )
