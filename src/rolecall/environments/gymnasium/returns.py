"""Puts the sum of an episode's rewards on the scale of a score."""

from __future__ import annotations


def check_bounds(low: float, high: float) -> None:
    """Check the bounds of what an episode can return; raises ValueError."""
    if not low < high:
        raise ValueError(f"low is {low:g} and high is {high:g}; low must be below high")


def scale_return(total: float, *, low: float, high: float) -> float:
    """Return the sum of rewards as a share of the way from `low` to `high`.

    Raises ValueError for a sum that is not between them.
    """
    share = (total - low) / (high - low)
    if not -1e-9 <= share <= 1 + 1e-9:
        raise ValueError(
            f"the environment paid {total:g}, which is not between low {low:g} and high {high:g}"
        )
    return min(1.0, max(0.0, share))
