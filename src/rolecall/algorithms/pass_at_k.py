"""Pass@k training (2508.10751): an attempt is worth what it does for the pass@k of its group.

Of N attempts at a task, of which M are wrong, all subsets of k are groups; a group earns 1 if one
of its attempts is right. A right attempt's groups always do; a wrong one's do unless the other
k - 1 are wrong too. Degenerate: if all or none are right, or every subset holds a right one, all
advantages are exactly 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from math import comb

from pydantic import Field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import KEYS, CreditedTurn, describe_key
from rolecall.algorithms.losses import Aggregation
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.credit import Compared
from rolecall.core.types import Episode


class PassAtK(ClippedLoss, Algorithm):
    """Advantage: the expected reward of an attempt's groups, centred and divided by its spread."""

    k: int = Field(4, ge=1, le=100_000)
    """Attempts of which one has to be right. 1 is GRPO for rewards of 0 and 1."""
    right: float = Field(1.0, ge=-1e9, le=1e9, allow_inf_nan=False)
    """Least reward of an attempt that is right: its agent's outcome and own rewards together."""
    agg: Aggregation = "turn_mean"

    def credit(self, episodes: list[Episode]) -> None:
        """K 2, rewards [1, 0, 0, 0] -> [1, -1/3, -1/3, -1/3] on every token of the attempts."""
        groups: dict[tuple[object, ...], list[CreditedTurn]] = defaultdict(list)
        for episode, turn in self.credited_turns(episodes):
            key = tuple(getattr(turn, name) for name in KEYS["agent"])
            groups[key].append((episode, turn))
        for turns in groups.values():
            self._compare(turns)

    def _compare(self, turns: list[CreditedTurn]) -> None:
        """Give credit to the turns of one agent at one task."""
        earned: dict[str, float] = {}
        for episode, turn in turns:
            earned.setdefault(episode.id, episode.outcome(turn.agent))
            earned[episode.id] += self.own_reward(episode, turn)
        right = {name: value >= self.right for name, value in earned.items()}
        n, wrong = len(right), sum(not one for one in right.values())
        values, mean, std = group_values(n, wrong, min(self.k, n))
        for episode, turn in turns:
            value = values[right[episode.id]]
            key = describe_key(turn, KEYS["agent"])
            amounts = {f"pass@{min(self.k, n)}": value}
            turn.give_credit(Compared(value, mean, n, amounts, key, "episode_agent", std=std))


def group_values(n: int, wrong: int, k: int) -> tuple[dict[bool, float], float, float]:
    """Return what the groups of a right and of a wrong attempt earn, and the mean and spread of all
    groups, of `n` attempts with `wrong` wrong ones.

    n 4, wrong 3, k 2 -> {True: 1, False: 2/3}, 1/2, 1/2.
    """
    mean = 1.0 - comb(wrong, k) / comb(n, k)
    of_wrong = 1.0 - comb(wrong - 1, k - 1) / comb(n - 1, k - 1) if wrong else 1.0
    return {True: 1.0, False: of_wrong}, mean, math.sqrt(mean * (1.0 - mean))
