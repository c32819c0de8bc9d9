"""AgentRL (2510.04206): GRPO whose advantages have mean 0 and spread 1 in every family of tasks.

The paper's second part, turns that earlier weights sample, is `team.AGENT.cross_policy`.
Degenerate: a family of equal advantages gets 0.
"""

from __future__ import annotations

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Aggregation


class AgentRl(Grpo):
    """Families [2, -2] and [.2, -.2], one token each, all become +-.707106."""

    per_family: bool = True
    """Give the advantages of each task family mean 0 and spread 1 over a policy's tokens, so that
    no family drowns the others. Families are the parts of a mixed environment."""
    agg: Aggregation = "token"
