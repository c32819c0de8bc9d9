"""Leader only (MLPO, 2507.08960): one trained leader reads peers that nobody trains.

Its answers to the same words of the same peers are compared, so that a peer's luck is in no
advantage. Degenerate: equal scores get 0; peers that agree still let the leader learn.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.algorithms.losses import Aggregation


class LeaderOnly(AtGrpo):
    """A = score - mean over the candidates of one prompt: [1, 0, 0, 0] -> .75, -.25, -.25, -.25."""

    divides: ClassVar[bool] = False

    agg: Aggregation = "turn_sum"
