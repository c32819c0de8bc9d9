"""Records what an optimizer step did, and merges the records of several."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rolecall.core.interfaces.algorithm import Objective
from rolecall.core.interfaces.learner import DivergedError, Update
from rolecall.learners.sums import Sums

MOST_SKIPPED = 3  # updates in a row that may be skipped before the run stops


def make_update(
    grad_norm: float, lr: float, sums: dict[str, Sums], agent_grad_norms: dict[str, float]
) -> Update:
    """Make the record of one step.

    The gradient's norm is also that of its only agent, if there is one.
    """
    update = Update(grad_norm=grad_norm, lr=lr)
    update.tokens = [tokens for totals in sums.values() for tokens in totals.read_tokens()]
    update.agent_metrics = {agent: totals.metrics() for agent, totals in sums.items()}
    num_ids = sum(totals.num_ids for totals in sums.values())
    update.kl = sum(float(sum(totals.moved)) for totals in sums.values()) / max(num_ids, 1)
    if agent_grad_norms:
        update.agent_grad_norms = agent_grad_norms
    elif len(sums) == 1:
        update.agent_grad_norms = dict.fromkeys(sums, grad_norm)
    return update


def check_diverged(num_skipped: int, broken: str) -> None:
    """Check for too many skipped steps in a row; raises DivergedError that names turn `broken`."""
    if num_skipped >= MOST_SKIPPED:
        raise DivergedError(
            f"{MOST_SKIPPED} updates in a row had no finite loss or gradient; "
            f"the last one broke on turn {broken}"
        )


def is_far(update: Update, algorithm: Objective) -> bool:
    """Return whether the policy has moved too far for another optimizer step."""
    return algorithm.target_kl is not None and update.kl > algorithm.target_kl


def merge_updates(updates: list[Update]) -> Update:
    """Merge several optimizer steps into one record: means, and the last learning rate.

    The mismatch is the same in every step: it is measured with the log-probs before the first.
    """
    if len(updates) == 1:
        return updates[0]
    norms: dict[str, list[float]] = defaultdict(list)
    metrics: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for update in updates:
        for agent, norm in update.agent_grad_norms.items():
            norms[agent].append(norm)
        for agent, own in update.agent_metrics.items():
            for name, value in own.items():
                metrics[agent][name].append(value)
    return Update(
        grad_norm=float(np.mean([update.grad_norm for update in updates])),
        agent_grad_norms={agent: float(np.mean(own)) for agent, own in norms.items()},
        lr=updates[-1].lr,
        agent_metrics={
            agent: {name: float(np.mean(values)) for name, values in own.items()}
            for agent, own in metrics.items()
        },
        kl=max(update.kl for update in updates),
        skipped=next((update.skipped for update in updates if update.skipped), ""),
        steps=updates,
    )
