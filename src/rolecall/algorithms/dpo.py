"""DPO (2305.18290): prefer the better of two answers to one prompt, measured from a reference.

`loss_type: ipo` is IPO (2310.12036), whose log-probs are means over a turn's tokens, as in TRL;
`hinge` is SLiC's (2305.10425), `sppo` that of SPPO with hard labels (2405.00675).

Degenerate: ties make no pair; a step without a pair is no update.
"""

from __future__ import annotations

from itertools import combinations
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import logsigmoid

from rolecall.algorithms.base import Algorithm, Rows
from rolecall.algorithms.groups import OF_A_TASK, call_key, prompt_key
from rolecall.algorithms.losses import LikelihoodLoss, per_turn
from rolecall.core.credit import Preferred
from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.types import Batch, Episode, Pair, Turn, group_by


class PreferenceLoss(LikelihoodLoss):
    """The margin of each pair: how much likelier the better turn is than under the reference."""

    keep_together: ClassVar[bool] = True

    beta: float = Field(0.1, gt=0, le=1000)
    """How strongly the reference holds the policy back."""
    loss_type: Literal["sigmoid", "ipo", "hinge", "sppo"] = "sigmoid"
    """DPO's own loss; IPO's, the square of how far the margin is from 1 / (2 beta); the hinge of
    SLiC, by how much beta times the margin is short of 1; or SPPO's, which moves the better turn
    towards 1 / (2 beta) and the worse one towards -1 / (2 beta)."""
    nll: float = Field(0.0, ge=0, le=1000)
    """Weight of the better turn's mean negative log-likelihood in the loss of each pair."""
    reference_free: bool = False
    """Compare log-probs themselves, as if the reference found all answers equally likely."""
    smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs whose label is taken to be wrong."""

    @model_validator(mode="after")
    def _check_smoothing(self) -> PreferenceLoss:
        if self.smoothing and self.loss_type != "sigmoid":
            raise ValueError(f"smoothing has no effect with loss_type {self.loss_type}; remove it")
        return self

    @property
    def needs_reference(self) -> bool:
        return not self.reference_free

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Return -log sigmoid(beta ((lp_w - ref_w) - (lp_l - ref_l))), a mean over pairs of
        turns."""
        device = outputs.logprobs.device
        gained, mask = outputs.logprobs, torch.from_numpy(batch.mask).to(device)
        if not self.reference_free:
            assert batch.ref_logprobs is not None, "DPO needs reference log-probs"
            gained = gained - torch.from_numpy(batch.ref_logprobs).to(device)
        gain, lengths = per_turn(gained * mask, batch), per_turn(mask, batch).clamp(min=1.0)
        if self.loss_type == "ipo":
            gain = gain / lengths
        better, worse = torch.from_numpy(batch.pairs).long().to(device).T
        margin = gain[better] - gain[worse]
        if self.loss_type == "ipo":
            losses = ipo_loss(margin, beta=self.beta)
        elif self.loss_type == "hinge":
            losses = hinge_loss(self.beta * margin)
        elif self.loss_type == "sppo":
            losses = sppo_loss(gain[better], gain[worse], beta=self.beta)
        else:
            losses = pair_loss(self.beta * margin, smoothing=self.smoothing)
        if self.nll:
            likelihoods = per_turn(outputs.logprobs * mask, batch) / lengths
            losses = losses - self.nll * likelihoods[better]
        margins = self.beta * margin.detach()
        sums = {"pair_accuracy": float((margins > 0).sum()), "margin": float(margins.sum())}
        return Loss(total=losses.sum(), count=float(len(batch.pairs)), sums=sums)


class Dpo(PreferenceLoss, Algorithm):
    """Trains the better of two siblings with identical prompt tokens to become more likely."""

    min_group: ClassVar[int] = 1
    compares_candidates: ClassVar[bool] = True
    takes_data: ClassVar[Rows | None] = "preferences"

    pair_up: Literal["best_worst", "all"] = "best_worst"
    """The best with the worst of each group, or every two with different scores."""

    def credit(self, episodes: list[Episode]) -> None:
        """Note each turn's score, and +1 or -1 on the turns of a pair."""
        turns = self.credited_turns(episodes)
        for episode, turn in turns:
            turn.training.preference = episode.total(turn)
        for better, worse in self.pairs([turn for _, turn in turns]):
            better.give_credit(Preferred(_score(better), _score(worse), worse.id))
            worse.give_credit(Preferred(_score(worse), _score(better), better.id))

    def pairs(self, turns: list[Turn]) -> list[Pair]:
        """Scores [1, 0, .5] of one prompt: best_worst (1, 0); all (1, 0), (1, .5), (.5, 0).

        The same words are no pair, whatever each was worth: no update prefers one to the other.
        """
        chosen: list[Pair] = []
        scored = [turn for turn in turns if turn.training.preference is not None]
        keys = (*OF_A_TASK, "agent", "index", "state", prompt_key, call_key)
        for group in group_by(scored, *keys):
            ranked = sorted(group, key=lambda turn: (-_score(turn), turn.id))
            pairs = [
                (i, j)
                for i, j in combinations(range(len(ranked)), 2)
                if _score(ranked[i]) > _score(ranked[j])
                and not np.array_equal(ranked[i].ids[1], ranked[j].ids[1])
            ]
            if self.pair_up == "best_worst" and pairs:
                gaps = {(i, j): _score(ranked[i]) - _score(ranked[j]) for i, j in pairs}
                pairs = [max(pairs, key=lambda pair: (gaps[pair], -pair[0], pair[1]))]
            chosen += [(ranked[i], ranked[j]) for i, j in pairs]
        return chosen


def pair_loss(logits: Tensor, *, smoothing: float) -> Tensor:
    """Loss of each pair; logit 0 -> ln 2, logit .15 -> .620957."""
    return -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)


def ipo_loss(margin: Tensor, *, beta: float) -> Tensor:
    """Loss of each pair; with beta .1 margin 0 -> 25, margin 5 -> 0."""
    return (margin - 1 / (2 * beta)) ** 2


def hinge_loss(logits: Tensor) -> Tensor:
    """Loss of each pair (2305.10425); logit 0 -> 1, logit .4 -> .6, logit 2 -> 0."""
    return torch.relu(1 - logits)


def sppo_loss(better: Tensor, worse: Tensor, *, beta: float) -> Tensor:
    """Loss of each pair (2405.00675, hard labels); gains 0, 0 with beta .1 -> 50; 5, -5 -> 0."""
    target = 1 / (2 * beta)
    return (better - target) ** 2 + (worse + target) ** 2


def _score(turn: Turn) -> float:
    assert turn.training.preference is not None
    return turn.training.preference
