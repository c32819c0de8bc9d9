"""A new algorithm on one page: GRPO measured from the median, which an outlier does not move."""

from statistics import median

from rolecall.algorithms.groups import Samples
from rolecall.algorithms.grpo import Grpo


def middle(samples: Samples):
    """Rewards [1, 0, 0, 0] are 1, 0, 0, 0 above it; exactly 0 where all are equal."""
    found = median(samples.values())
    return lambda episode: found


class Median(Grpo):
    baseline = staticmethod(middle)
