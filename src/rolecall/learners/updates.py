"""Merges what several optimizer steps did into one record of an update."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rolecall.interfaces.learner import Update


def merged(updates: list[Update]) -> Update:
    """One record of several optimizer steps: means, and the last learning rate.

    The mismatch is the same in every step: it is measured with the log-probs before the first.
    """
    if len(updates) == 1:
        return updates[0]
    norms: dict[str, list[float]] = defaultdict(list)
    metrics: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for update in updates:
        for agent, norm in update.agent_grad_norms.items():
            norms[agent].append(norm)
        for agent, found in update.agent_metrics.items():
            for name, value in found.items():
                metrics[agent][name].append(value)
    return Update(
        grad_norm=float(np.mean([update.grad_norm for update in updates])),
        agent_grad_norms={agent: float(np.mean(found)) for agent, found in norms.items()},
        lr=updates[-1].lr,
        agent_metrics={
            agent: {name: float(np.mean(values)) for name, values in found.items()}
            for agent, found in metrics.items()
        },
        skipped=next((update.skipped for update in updates if update.skipped), ""),
    )
