"""CORY (2410.06101): pioneer and observer share one reward, and trade places.

The workflow `pioneer_observer` pays both the sum of their answers' scores and swaps the roles;
weights, optimizer state, value head and KL coefficient stay with their policy. Degenerate: equal
rewards leave the KL alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from rolecall.algorithms.losses import importance_ratio
from rolecall.algorithms.ppo import Ppo, PpoLoss
from rolecall.core.json_types import State
from rolecall.core.types import Batch, Episode, Floats, Turn, group_by

LARGEST_CHANGE = 0.2  # of the KL coefficient in a step, before the horizon (1909.08593, eq. 2.2)


class CoryLoss(PpoLoss):
    """PPO's loss, less its policy loss where a batch has moved too far."""

    most_ratio: float = Field(10.0, gt=1, le=1e6)
    """A batch of turns whose mean probability ratio is above this has no policy loss."""

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        gains, clipped = super().objective(logprobs, anchor, advantages, batch)
        mask = torch.from_numpy(batch.mask > 0).to(logprobs.device)
        ratio = importance_ratio(logprobs.detach() - anchor)[mask].mean()
        return torch.where(ratio > self.most_ratio, 0.0 * gains, gains), clipped


class Cory(CoryLoss, Ppo):
    """PPO with the KL in the reward of each token, and a coefficient that follows a target."""

    kl: float = Field(0.4, gt=0, le=1000)
    """Coefficient of the KL to the reference as the run begins."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Whether the KL is a loss, or taken from the reward of each token (as old - ref)."""
    kl_target: float = Field(6.0, gt=0, le=1e6)
    """The KL of a turn, in nats, that the coefficient is moved towards."""
    horizon: int = Field(10_000, ge=1, le=1_000_000_000)
    """Turns over which it moves."""
    _kl: dict[str, float] = PrivateAttr(default_factory=dict)  # coefficients by policy
    _seen: dict[str, tuple[float, int]] = PrivateAttr(default_factory=dict)  # mean KL, turns

    def credit(self, episodes: list[Episode]) -> None:
        super().credit(episodes)
        turns = [t for episode in episodes for t in episode.turns if t.advantages is not None]
        self._seen = {
            group[0].policy: (float(np.mean([_estimate_kl(turn) for turn in group])), len(group))
            for group in group_by(turns, "policy")
        }

    def kl_rewards(self, turn: Turn) -> Floats:
        """Return the KL rewards as in PPO, with the policy's own coefficient."""
        rewards = super().kl_rewards(turn)
        return rewards * (self._kl.get(turn.policy, self.kl) / self.kl)

    def after_step(self, step: int) -> None:
        """TRL's controller: coefficient 1, KL 9, target 6, 100 turns of 10,000 -> 1.002."""
        for policy, (mean, turns) in self._seen.items():
            change = min(max(mean / self.kl_target - 1, -LARGEST_CHANGE), LARGEST_CHANGE)
            now = self._kl.get(policy, self.kl)
            self._kl[policy] = now * (1 + change * turns / self.horizon)

    def metrics(self) -> dict[str, float]:
        coefficients = {f"kl_coefficient/{policy}": value for policy, value in self._kl.items()}
        return coefficients | {f"kl/{policy}": mean for policy, (mean, _) in self._seen.items()}

    def state_dict(self) -> State:
        return {"kl": dict(self._kl)}

    def load_state_dict(self, state: State) -> None:
        self._kl = dict(state["kl"])


def _estimate_kl(turn: Turn) -> float:
    """Return log p / p_ref of the turn's tokens, an estimate of its KL."""
    assert turn.logprobs is not None
    assert turn.training.ref_logprobs is not None
    return float((turn.logprobs - turn.training.ref_logprobs).sum(dtype="float64"))
