"""The learner's log-probs beside the sampler's in, how far they are apart out.

d = learner - sampler on sampled ids, before the first optimizer step of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rolecall.core import Floats

RATIO_LOW, RATIO_HIGH = 0.5, 2.0


class Mismatch:
    """Sums over the micro-batches of one agent."""

    def __init__(self) -> None:
        self.count = 0
        self.distance = self.k3 = self.outside = self.largest = 0.0

    def add(self, logprobs: Tensor, mask: Floats, old_logprobs: Floats) -> None:
        """Learner's log-probs, mask and sampler's log-probs of one batch, each [N]."""
        old = torch.from_numpy(old_logprobs).to(logprobs.device)
        d = (logprobs - old)[torch.from_numpy(mask > 0).to(logprobs.device)]
        ratio = d.clamp(-20.0, 20.0).exp()
        self.count += len(d)
        self.distance += float(d.abs().sum())
        self.k3 += float((ratio - 1.0 - d).sum())
        self.outside += float(((ratio < RATIO_LOW) | (ratio > RATIO_HIGH)).sum())
        self.largest = max(self.largest, float(d.abs().max()))

    def metrics(self) -> dict[str, float]:
        """Mean |d|, the k3 estimate of KL(sampler || learner), max |d|, share outside [.5, 2]."""
        return {
            "mismatch_mean": self.distance / self.count,
            "mismatch_kl": self.k3 / self.count,
            "mismatch_max": self.largest,
            "mismatch_outside": self.outside / self.count,
        }
