"""Puts the results of runs with several seeds together, with 95 % intervals by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Student's t for 95 % and two sides, with 1 to 9 degrees of freedom.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MOST_SEEDS = len(T95) + 1


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds and half the width of its 95 % interval; None with one seed."""

    mean: float
    margin: float | None

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - (self.margin or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + (self.margin or 0.0)

    def __str__(self) -> str:
        return f"{self:.1f}"

    def __format__(self, spec: str) -> str:
        margin = "" if self.margin is None else f" +- {self.margin:{spec}}"
        return f"{self.mean:{spec}}{margin}"


def over_seeds(values: Sequence[float]) -> Mean:
    """Student's t with n - 1 degrees of freedom; for one seed the mean alone.

    over_seeds([1., 2., 3.]) -> Mean(2.0, 2.484)
    """
    if len(values) < 2:
        return Mean(fmean(values), None)
    return Mean(fmean(values), T95[len(values) - 2] * stdev(values) / math.sqrt(len(values)))
