"""Dr. GRPO (2503.20783): GRPO without the two divisions that favour short or easy answers.

The advantage is not divided by the spread, and a turn's loss is divided by a constant instead of
its length. Degenerate: as GRPO. Beside RLOO it is A = (K - 1) / K times RLOO's.
"""

from __future__ import annotations

from typing import Literal

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Aggregation


class DrGrpo(Grpo):
    """Rewards [1, 0, 0, 0] -> [.75, -.25, -.25, -.25] on every token of the attempts."""

    std: Literal["task", "agent", "global", "none"] = "none"
    agg: Aggregation = "turn_sum"
