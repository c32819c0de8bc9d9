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
    "token_tis",
    "sequence_tis",
    "geometric_tis",
    "token_mis",
    "sequence_mis",
    "geometric_mis",
    "none",
]
LOW, HIGH = 0.5, 2.0  # default bounds of ratios
REJECTS = ("token_mis", "sequence_mis", "geometric_mis")


def correct(
    d: Tensor,
    batch: Batch,
    *,
    kind: Correction,
    low: float = LOW,
    high: float = HIGH,
    veto: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Weight [N] that multiplies the objective, and 1 for each token [N] that is kept.

    d = [.1, -1.5, .8, -10, .3] in one turn: `token_tis` [1.1052, .2231, 2.0, 4.5e-5, 1.3499];
    `token_mis` keeps tokens 1 and 5; `sequence_tis` 3.3633e-5 on all; `geometric_mis` tests
    exp(mean d) = .127454 and rejects the turn, `geometric_tis` has it as the weight. `veto` .0001
    rejects the whole turn for its token of 4.5e-5. Sampled tokens only; elsewhere the weight is 1.
    """
    d = d.detach() * torch.from_numpy(batch.mask).to(d.device)
    kept = torch.ones_like(d)
    if kind == "none":
        return kept, kept
    turn = torch.from_numpy(batch.turn).long().to(d.device)
    by_token = importance_ratio(d)
    if veto is not None:
        kept = kept * (per_turn((by_token < veto).to(d.dtype), batch)[turn] == 0)
    if kind.startswith("sequence"):
        ratio = importance_ratio(per_turn(d, batch))[turn]
    elif kind.startswith("geometric"):
        length = per_turn(torch.from_numpy(batch.mask).to(d.device), batch)
        ratio = importance_ratio(per_turn(d, batch) / length)[turn]
    else:
        ratio = by_token
    if kind not in REJECTS:
        return ratio.clamp(max=high), kept
    kept = kept * ((ratio >= low) & (ratio <= high))
    return (torch.ones_like(d) if kind == "geometric_mis" else ratio), kept
