"""Weights tokens by how far the learner's log-probs are from the sampler's.

d = prox - old, the learner at the start of the update minus the sampler: numerical mismatch and,
where rollouts are stale, drift. Truncated weights (TIS) bound the ratio; masks (MIS) reject.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rolecall.algorithms.losses import importance_ratio, per_turn
from rolecall.core.types import Batch

Correction = Literal[
    "token_tis", "sequence_tis", "token_mis", "sequence_mis", "geometric_mis", "none"
]
LOW, HIGH = 0.5, 2.0  # ratios outside are rejected or truncated
REJECTS = ("token_mis", "sequence_mis", "geometric_mis")


def correct(d: Tensor, batch: Batch, *, kind: Correction) -> tuple[Tensor, Tensor]:
    """Weight [N] that multiplies the objective, and 1 for each token [N] that is kept.

    d = [.1, -1.5, .8, -10, .3] in one turn: `token_tis` [1.1052, .2231, 2.0, 4.5e-5, 1.3499];
    `token_mis` keeps tokens 1 and 5; `sequence_tis` 3.3633e-5 on all; `geometric_mis` tests
    exp(mean d) = .127454 and rejects the turn. Sampled tokens only; elsewhere the weight is 1.
    """
    d = d.detach() * torch.from_numpy(batch.mask).to(d.device)
    one = torch.ones_like(d)
    if kind == "none":
        return one, one
    turn = torch.from_numpy(batch.turn).long().to(d.device)
    if kind.startswith("sequence"):
        ratio = importance_ratio(per_turn(d, batch))[turn]
    elif kind == "geometric_mis":
        length = per_turn(torch.from_numpy(batch.mask).to(d.device), batch)
        ratio = importance_ratio(per_turn(d, batch) / length)[turn]
    else:
        ratio = importance_ratio(d)
    if kind not in REJECTS:
        return ratio.clamp(max=HIGH), one
    inside = ((ratio >= LOW) & (ratio <= HIGH)).to(d.dtype)
    return (one if kind == "geometric_mis" else ratio), inside
