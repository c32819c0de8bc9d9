"""Puts the sum of an episode's rewards on the scale of a score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Turns sums of rewards into scores, and says whether an action is paid at once."""

    low: float | None  # with `high` the bounds of a sum, which score 0 and 1; None: it is the score
    high: float | None
    pays_steps: bool

    @classmethod
    def make(cls, low: float | None, high: float | None, *, pays_steps: bool) -> Scale:
        """Check the bounds; raises ValueError for one without the other and for wrong ones."""
        if (low is None) != (high is None):
            raise ValueError("low and high belong together; write both or none")
        if low is not None and high is not None and not low < high:
            raise ValueError(f"low is {low:g} and high is {high:g}; low must be below high")
        return cls(low, high, pays_steps)

    def score(self, total: float) -> float:
        """Return the score of a sum of rewards; raises ValueError for one out of bounds."""
        if self.low is None or self.high is None:
            return total
        share = (total - self.low) / (self.high - self.low)
        if not -1e-9 <= share <= 1 + 1e-9:
            bounds = f"between low {self.low:g} and high {self.high:g}"
            raise ValueError(f"the environment paid {total:g}, which is not {bounds}")
        return min(1.0, max(0.0, share))

    def pay(self, reward: float) -> float:
        """Return what an action earns at once."""
        if not self.pays_steps:
            return 0.0
        return reward if self.low is None or self.high is None else reward / (self.high - self.low)
