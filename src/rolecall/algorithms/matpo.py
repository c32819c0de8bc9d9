"""MATPO (2510.04678): planner and workers are one LLM and share one scalar of the episode.

Every sampled token of every worker's call carries the advantage of the episode, however many calls
there were. The reward `matpo` makes the scalar. Degenerate: a planner that calls nobody has GRPO.
"""

from __future__ import annotations

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Aggregation


class Matpo(Grpo):
    """GRPO over episodes; the loss is a mean over the tokens of planner and workers together."""

    agg: Aggregation = "token"
