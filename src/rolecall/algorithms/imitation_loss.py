"""The loss of what imitates turns: some of its own, or those of a file."""

from __future__ import annotations

import torch

from rolecall.algorithms.base_loss import LikelihoodLoss
from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.types import Batch


class ImitationLoss(LikelihoodLoss):
    """Minus the log-likelihood, weighted by advantages."""

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """-weight log p summed over the imitated tokens; mean over those that have a weight."""
        weights = torch.from_numpy(batch.advantages * batch.mask).to(outputs.logprobs.device)
        return Loss(-(outputs.logprobs * weights).sum(), float((weights > 0).sum()))
