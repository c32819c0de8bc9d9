"""DPO (2305.18290): prefer the better of two answers to one prompt, measured from a reference.

Degenerate: ties make no pair; a step without a pair is no update.
"""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from rolecall.algorithms.base import OF_CLIPPED_LOSS, Algorithm, Rows
from rolecall.algorithms.groups import prompt_of
from rolecall.algorithms.losses import per_turn
from rolecall.interfaces.algorithm import Loss, Outputs
from rolecall.types import Batch, Episode, Pair, Turn, group_by, spread


class Dpo(Algorithm):
    """Trains the better of two siblings with identical prompt tokens to become more likely."""

    min_group: ClassVar[int] = 1
    compares_candidates: ClassVar[bool] = True
    keep_together: ClassVar[bool] = True
    takes_data: ClassVar[Rows | None] = "preferences"
    without_effect: ClassVar[tuple[str, ...]] = OF_CLIPPED_LOSS

    in_credit: ClassVar[frozenset[str]] = frozenset({"pair_up"})

    beta: float = Field(0.1, gt=0, le=1000)
    """How strongly the reference holds the policy back."""
    pair_up: Literal["best_worst", "all"] = "best_worst"
    """The best with the worst of each group, or every two with different scores."""
    smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs whose label is taken to be wrong."""

    @property
    def needs_reference(self) -> bool:
        return True

    @property
    def needs_prox(self) -> bool:
        return False

    @property
    def skips_zero(self) -> bool:
        return False

    def credit(self, episodes: list[Episode]) -> None:
        """Note each turn's score, and +1 or -1 on the turns of a pair."""
        said = self.credited_turns(episodes)
        for episode, turn in said:
            turn.preference = episode.total(turn)
        for better, worse in self.pairs([turn for _, turn in said]):
            better.advantages, worse.advantages = spread(better, 1.0), spread(worse, -1.0)

    def pairs(self, turns: list[Turn]) -> list[Pair]:
        """Scores [1, 0, .5] of one prompt: best_worst (1, 0); all (1, 0), (1, .5), (.5, 0)."""
        found: list[Pair] = []
        scored = [turn for turn in turns if turn.preference is not None]
        for group in group_by(scored, "task", "agent", "index", "state", prompt_of):
            ranked = sorted(group, key=lambda turn: (-_score(turn), turn.id))
            if self.pair_up == "all":
                found += [(a, b) for a, b in combinations(ranked, 2) if _score(a) > _score(b)]
            elif _score(ranked[0]) > _score(ranked[-1]):
                found.append((ranked[0], ranked[-1]))
        return found

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """-log sigmoid(beta ((lp_w - ref_w) - (lp_l - ref_l))) of whole turns; mean over pairs."""
        assert batch.ref_logprobs is not None, "DPO needs reference log-probs"
        device = outputs.logprobs.device
        ref, mask = (torch.from_numpy(c).to(device) for c in (batch.ref_logprobs, batch.mask))
        gain = per_turn((outputs.logprobs - ref) * mask, batch)
        better, worse = torch.from_numpy(batch.pairs).long().to(device).T
        logits = self.beta * (gain[better] - gain[worse])
        losses = pair_loss(logits, smoothing=self.smoothing)
        sums = {"pair_accuracy": float((logits > 0).sum()), "margin": float(logits.detach().sum())}
        return Loss(total=losses.sum(), count=float(len(batch.pairs)), sums=sums)


def pair_loss(logits: Tensor, *, smoothing: float) -> Tensor:
    """Loss of each pair; logit 0 -> ln 2, logit .15 -> .620957."""
    return -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)


def _score(turn: Turn) -> float:
    assert turn.preference is not None
    return turn.preference
