"""Sums losses and log-probs of one agent's micro-batches to its means of an optimizer step.

The mismatch is d = learner - sampler on sampled tokens, before the first optimizer step of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.interfaces.learner import TurnTokens
from rolecall.core.types import Batch, Ids

RATIO_LOW, RATIO_HIGH = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The sampled tokens of a micro-batch, on the learner's device: columns of [M]."""

    turn_ids: list[str]
    lengths: Ids  # [turns]
    logprobs: Tensor
    entropies: Tensor | None
    clipped: Tensor | None

    def read(self) -> TurnTokens:
        """Return them in the computer's memory."""
        entropies = None if self.entropies is None else self.entropies.cpu().numpy()
        clipped = None if self.clipped is None else self.clipped.cpu().numpy()
        return TurnTokens(
            self.turn_ids, self.lengths, self.logprobs.cpu().numpy(), entropies, clipped
        )


class Sums:
    """Sums over micro-batches; they stay on the device until they are read."""

    def __init__(self) -> None:
        self.count = 0.0  # what the losses are divided by
        self.losses: list[Tensor] = []
        self.parts: dict[str, float] = defaultdict(float)
        self.num_ids = 0
        self.moved: list[Tensor] = []  # of each batch: the sum of ratio - 1 - log ratio to before
        self.mismatch: list[Tensor] = []  # of each batch: sums of |d|, k3, outside; largest |d|
        self.tokens: list[Columns | TurnTokens] = []  # of each batch

    def add(self, batch: Batch, loss: Loss, outputs: Outputs) -> None:
        """Add one micro-batch and what the learner computed of it."""
        self.count += loss.count
        self.losses.append(loss.total.detach())
        for name, value in loss.sums.items():
            self.parts[name] += value
        logprobs = outputs.logprobs.detach()
        prox, device = batch.prox_logprobs, logprobs.device
        before = logprobs if prox is None else torch.from_numpy(prox).to(device)
        mask = torch.from_numpy(batch.mask > 0).to(device)
        self._keep_tokens(batch, before[mask], mask, loss, outputs)
        if batch.old_logprobs is None:
            return
        moved = (logprobs - before)[mask]
        self.moved.append((moved.clamp(-20.0, 20.0).exp() - 1.0 - moved).sum())
        d = (before - torch.from_numpy(batch.old_logprobs).to(device))[mask]
        ratio = d.clamp(-20.0, 20.0).exp()
        outside = (ratio < RATIO_LOW) | (ratio > RATIO_HIGH)
        size = d.abs()
        self.num_ids += len(d)
        self.mismatch.append(
            torch.stack([size.sum(), (ratio - 1.0 - d).sum(), outside.sum(), size.max()])
        )

    def _keep_tokens(
        self, batch: Batch, before: Tensor, mask: Tensor, loss: Loss, outputs: Outputs
    ) -> None:
        sampled = batch.turn[batch.mask > 0]  # those of one turn stand together
        lengths = np.bincount(sampled, minlength=len(batch.turn_ids)).astype(np.int32)
        entropies = None if outputs.entropies is None else outputs.entropies.detach()[mask]
        clipped = None if loss.clipped is None else loss.clipped[mask]
        self.tokens.append(Columns(batch.turn_ids, lengths, before, entropies, clipped))

    def read_tokens(self) -> list[TurnTokens]:
        """Return the sampled tokens of each micro-batch."""
        return [one.read() if isinstance(one, Columns) else one for one in self.tokens]

    def on_host(self) -> Sums:
        """Return these sums in the computer's memory, in as few numbers as they need."""
        sums = Sums()
        sums.count, sums.parts, sums.num_ids = self.count, self.parts, self.num_ids
        sums.tokens = [*self.read_tokens()]
        if self.losses:
            sums.losses = [torch.stack(self.losses).sum().cpu()]
        if self.mismatch:
            rows = torch.stack(self.mismatch)
            sums.moved = [torch.stack(self.moved).sum().cpu()]
            sums.mismatch = [torch.cat([rows[:, :3].sum(0), rows[:, 3:].amax(0)]).cpu()]
        return sums

    def take(self, other: Sums) -> None:
        """Add the sums of other micro-batches, as of another rank."""
        self.count += other.count
        self.num_ids += other.num_ids
        self.losses += other.losses
        self.moved += other.moved
        self.mismatch += other.mismatch
        self.tokens += other.tokens
        for name, value in other.parts.items():
            self.parts[name] += value

    def metrics(self) -> dict[str, float]:
        """Mean loss and its parts; mean |d|, k3 estimate of KL(sampler || learner), max |d|, and
        the share of tokens whose ratio is outside [.5, 2].
        """
        count = max(self.count, 1.0)
        means = {"loss": float(torch.stack(self.losses).sum()) / count}
        means |= {name: value / count for name, value in self.parts.items()}
        if not self.mismatch:
            return means
        rows = torch.stack(self.mismatch)
        distance, k3, outside, _ = (rows.sum(0) / self.num_ids).tolist()
        return means | {
            "mismatch_mean": distance,
            "mismatch_kl": k3,
            "mismatch_max": float(rows[:, 3].max()),
            "mismatch_outside": outside,
        }
