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
    """Whose scores an agent's are measured from: all of the attempts at a task, its own in them
    (`agent`), or all of the step (`global`)."""
    std: Literal["task", "agent", "global", "none"] = "agent"
    """Whose spread divides them; `none`: they are not divided."""
    count: Count = "turn"
    """What is one sample of mean and spread: a turn, or an agent's share of an episode."""
    agg: Aggregation = "token"
    """Mean over all sampled tokens, mean of the turns' means, or sum of a turn over a constant."""
