"""Declares what a learner computes for an algorithm's loss, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rolecall.core.types import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Outputs:
    """Holds what the learner's forward pass computes of a batch."""

    logprobs: Tensor  # [N] float32, of use where the batch's mask is 1 only
    entropies: Tensor | None = None  # [N] of the distribution each token was sampled from; with a
    # gradient where the loss has a bonus for them
    values: Tensor | None = None  # [N] before each sampled token, of a head on the policy's model


@dataclass(slots=True)
class Loss:
    """A sum and what to divide it by; the learner adds both over micro-batches first."""

    total: Tensor  # scalar, not normalised
    count: float
    sums: dict[str, float] = field(default_factory=dict)  # metrics, with the same normaliser
    clipped: Tensor | None = field(default=None, compare=False)  # [N] where the objective is
    # clipped; None: it never is


class Objective(Protocol):
    """Defines what a learner asks of an algorithm."""

    entropy: float  # above 0 the outputs have entropies with a gradient
    target_kl: float | None  # of `Update.kl`, after which no further optimizer step is taken

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Compute the loss of one micro-batch, summed and not yet divided."""
        ...
