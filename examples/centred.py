"""A new algorithm on one page: GRPO without its division by the spread (Dr. GRPO, 2503.20783)."""

from rolecall.algorithms.groups import compare
from rolecall.algorithms.grpo import Grpo
from rolecall.core import Episode


def centred(scores: list[float]):
    """s -> s - mean; exactly 0 where all are equal. [1, 0, 0, 0] -> .75, -.25, -.25, -.25."""
    if len(scores) < 2 or max(scores) == min(scores):
        return lambda score: 0.0
    mean = sum(scores) / len(scores)
    return lambda score: score - mean


class Centred(Grpo):
    def credit(self, episodes: list[Episode]) -> None:
        compare(
            episodes,
            keys=self.keys,
            count=self.count,
            norm=centred,
            mask_truncated=self.mask_truncated,
        )
