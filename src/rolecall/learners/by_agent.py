"""Gives each agent of a shared policy the loss with its own settings."""

from __future__ import annotations

from rolecall.core.interfaces.algorithm import Loss, Objective, Outputs
from rolecall.core.types import Batch


class ByAgent:
    """The objective of a policy whose agents have different settings; all count tokens alike."""

    def __init__(self, algorithms: dict[str, Objective]) -> None:
        self.algorithms = algorithms
        objectives = list(algorithms.values())
        self.entropy = max(algorithm.entropy for algorithm in objectives)
        self.target_kl = objectives[0].target_kl

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Return the loss of a batch of one agent."""
        return self.algorithms[batch.agent].loss(batch, outputs)


def combine_objectives(algorithms: dict[str, Objective]) -> Objective:
    """Return one objective for the agents that share a policy."""
    first, *others = algorithms.values()
    return ByAgent(algorithms) if any(other is not first for other in others) else first
