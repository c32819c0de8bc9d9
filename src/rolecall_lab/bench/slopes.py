"""Fits how fast a cost grows: the slope of a line through its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

STEEP = 1.1  # a slope above it needs a reason
FIRST_STEPS = 100  # in which a process still grows to its size


@dataclass(frozen=True, slots=True)
class Slope:
    """Slope of a cost on two logarithmic scales: 1 where double the work takes double the time."""

    slope: float  # of a line through the medians of all points
    min: float  # of the lines through the points of one round each
    max: float
    last: float  # between the last two points, where fixed costs weigh least

    @property
    def is_steep(self) -> bool:
        return max(self.slope, self.last) > STEEP


def fit_slope(positions: Sequence[float], costs: Sequence[float]) -> float:
    """Fit cost = a * position ** slope: positions 1, 2, 4 and costs 3, 6, 12 -> 1.0."""
    return float(np.polyfit(np.log(positions), np.log(costs), 1)[0])


def summarize(positions: Sequence[float], rounds: Sequence[Sequence[float]]) -> Slope:
    """Return the slope of an axis; `rounds`: the cost at each position, measured in turn."""
    medians = [median(costs) for costs in zip(*rounds, strict=True)]
    slopes = [fit_slope(positions, costs) for costs in rounds]
    return Slope(
        slope=fit_slope(positions, medians),
        min=min(slopes),
        max=max(slopes),
        last=fit_slope(positions[-2:], medians[-2:]),
    )


def fit_growth(memory: dict[str, Any]) -> float:
    """Return the MB that a process grows by in 1,000 steps, without its first ones."""
    points = zip(memory["steps"], memory["mb"], strict=True)
    steps, megabytes = zip(*[point for point in points if point[0] > FIRST_STEPS], strict=True)
    return float(np.polyfit(steps, megabytes, 1)[0] * 1000)
