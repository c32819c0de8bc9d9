"""Dr. MAS (2602.08847): GRPO, with every agent compared with itself only.

With one pooled mean and spread, the size of an agent's gradient follows how its rewards differ
from the others'; agent by agent E[A^2] is 1 for each. Degenerate: an agent that spoke once in the
whole group gets 0.
"""

from __future__ import annotations

from typing import Literal

from rolecall.algorithms.groups import Count, Level
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Aggregation


class DrMas(Grpo):
    """Counts every call as one sample, with a loss that is a mean over tokens, as published."""

    mean: Level = "agent"
    std: Literal["task", "agent", "global", "none"] = "agent"
    count: Count = "turn"
    agg: Aggregation = "token"
