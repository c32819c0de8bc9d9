"""Moves the coefficient of the KL to the reference, so that the KL of a turn stays near a target.

The controller of 1909.08593, eq. 2.2, as in TRL, verl and OpenRLHF.
"""

from __future__ import annotations

import numpy as np

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.policy_loss import PolicyLoss
from rolecall.core.json_types import State
from rolecall.core.types import Episode, Turn, group_by

LARGEST_CHANGE = 0.2  # of the coefficient in a step, before the horizon


class KlController:
    """Holds what an algorithm with `kl_target` has seen, and moves its coefficients by policy."""

    def __init__(self, algorithm: PolicyLoss) -> None:
        self._algorithm = algorithm
        self._seen: dict[str, tuple[float, int]] = {}  # mean KL and number of turns by policy

    def observe(self, episodes: list[Episode]) -> None:
        """Note the KL of the credited turns of a step."""
        turns = [turn for e in episodes for turn in e.turns if turn.advantages is not None]
        self._seen = {
            group[0].policy: (float(np.mean([_estimate_kl(turn) for turn in group])), len(group))
            for group in group_by(turns, "policy")
        }

    def move(self) -> None:
        """Move each coefficient: 1, with a KL of 9, target 6 and 100 turns of 10,000, is 1.002."""
        target, coefficients = self._algorithm.kl_target, self._algorithm.kl_coefficients
        assert target is not None, "only algorithms with a target have a controller"
        for policy, (mean, turns) in self._seen.items():
            change = min(max(mean / target - 1, -LARGEST_CHANGE), LARGEST_CHANGE)
            now = coefficients.get(policy, self._algorithm.kl)
            coefficients[policy] = now * (1 + change * turns / self._algorithm.horizon)

    def metrics(self) -> dict[str, float]:
        """Return each policy's coefficient, and the KL of its turns in this step."""
        coefficients = self._algorithm.kl_coefficients
        metrics = {f"kl_coefficient/{policy}": value for policy, value in coefficients.items()}
        return metrics | {f"kl/{policy}": mean for policy, (mean, _) in self._seen.items()}

    def state_dict(self) -> State:
        return {"kl": dict(self._algorithm.kl_coefficients)}

    def load_state_dict(self, state: State) -> None:
        self._algorithm.kl_coefficients.update(state["kl"])


def make_kl_controller(algorithm: Algorithm) -> KlController | None:
    """Return the controller of an algorithm that has a target; None for others."""
    if not isinstance(algorithm, PolicyLoss) or algorithm.kl_in == "loss":
        return None
    return None if algorithm.kl_target is None else KlController(algorithm)


def _estimate_kl(turn: Turn) -> float:
    """Return log p / p_ref of the turn's tokens, an estimate of its KL."""
    assert turn.logprobs is not None
    assert turn.training.ref_logprobs is not None
    return float((turn.logprobs - turn.training.ref_logprobs).sum(dtype="float64"))
