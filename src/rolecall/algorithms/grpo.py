"""GRPO (2402.03300): an attempt is worth what it earned above the other attempts at its task.

Degenerate: a group of one, or with equal outcomes, gets exactly 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import Baseline, Count, Level, compare, group_mean
from rolecall.algorithms.losses import Aggregation
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.types import Episode


class Grpo(ClippedLoss, Algorithm):
    """Advantage: the outcome, centred and divided by the spread of its task's attempts."""

    baseline: ClassVar[Baseline] = staticmethod(group_mean)

    mean: Level = "task"
    """Whose scores an agent's are measured from: all of the attempts at a task, its own in them
    (`agent`), or all of the step (`global`)."""
    std: Literal["task", "agent", "global", "none"] = "task"
    """Whose spread divides them; `none`: they are not divided."""
    count: Count = "episode_agent"
    """What is one sample of mean and spread: a turn, or an agent's share of an episode."""
    agg: Aggregation = "turn_mean"

    def least_attempts(self, is_group: bool) -> int:
        """Return 1 where answers of one attempt are compared with each other."""
        kind = type(self)
        compares_turns = kind.credit is Grpo.credit and kind.baseline is group_mean
        if is_group and compares_turns and self.count == "turn" and not self.filters_groups:
            return 1
        return self.min_group

    def credit(self, episodes: list[Episode]) -> None:
        """Rewards [1, 1, 0, 0] -> [.866, .866, -.866, -.866] on every token of the attempts."""
        turns = self.credited_turns(episodes)
        compare(
            turns,
            mean=self.mean,
            std=self.std,
            count=self.count,
            own=self.own_reward,
            several=len(self.trained_agents(turn.agent for _, turn in turns)) > 1,
            baseline=type(self).baseline,
        )
