"""A new algorithm on one page: GRPO without its division by the spread (Dr. GRPO, 2503.20783)."""

from rolecall.algorithms.groups import Samples, mean_of
from rolecall.algorithms.grpo import Grpo


def centred(samples: Samples):
    """s -> s - mean; exactly 0 where all are equal. [1, 0, 0, 0] -> .75, -.25, -.25, -.25."""
    mean = mean_of(samples.values())
    return lambda score, episode: score - mean


class Centred(Grpo):
    norm = staticmethod(centred)
