"""The base classes of losses, and functions of single tokens that they are made of.

A loss declares the options that it reads. An algorithm names its loss among its bases, so that all
options stand beside one another in YAML.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.types import Batch, Floats, Turn, spread

Aggregation = Literal["token", "turn_mean", "turn_sum"]
Estimator = Literal["k1", "k2", "k3"]
LARGEST_LOG_RATIO = 20.0  # beyond it exp() is useless and soon infinite


class BaseLoss(BaseModel):
    """The settings of every loss: how often and on which turns a step computes it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    one_policy_at_a_time: ClassVar[bool] = False
    """Policies are updated in random order, each followed by `after_update`."""
    keep_together: ClassVar[bool] = False
    """Its loss is one of pairs of turns."""
    reads_likelihoods: ClassVar[bool] = False
    """Its loss is one of likelihoods, at temperature 1, whoever said the words and however they
    were sampled. Other losses compare with the sampler, so they have its temperature."""

    mask_truncated: bool = False
    """Leave turns that were cut by length out of loss and statistics."""
    epochs: int = Field(1, ge=1, le=1000)
    """Epochs over the turns of a step."""
    minibatches: int = Field(1, ge=1, le=100_000)
    """Optimizer steps in an epoch, each on its share of the turns."""

    if TYPE_CHECKING:  # options of some losses, constants of others
        entropy: float = 0.0
        target_kl: float | None = None
        per_family: bool = False

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Inherit each option from the class whose methods would be inherited.

        pydantic takes all that the first base has, also what that one only inherited itself: in
        `class Mine(MyLoss, Grpo)` the `agg` of ClippedLoss instead of Grpo's.
        """
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, BaseModel)]
        inherited = {}
        for name, field in cls.model_fields.items():
            owner = next(kind for kind in kinds if name in get_annotations(kind))
            if repr(owner.model_fields[name]) != repr(field):
                inherited[name] = owner.model_fields[name]
        if inherited:
            cls.model_fields.update(inherited)
            cls.model_rebuild(force=True)

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def needs_prox(self) -> bool:
        """Return whether it needs the learner's log-probs of before its first optimizer step."""
        return False

    @property
    def skips_zero(self) -> bool:
        """Return whether a turn without advantage has no gradient and changes no normaliser."""
        return not self.keep_together

    @property
    def read_by_credit(self) -> frozenset[str]:
        """Return the options of the loss that credit reads, too."""
        return frozenset({"mask_truncated"})

    def kl_rewards(self, turn: Turn) -> Floats:
        """Return what the KL to the reference takes from the reward of each token [T]."""
        return spread(turn, 0.0)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Compute the loss of one micro-batch, summed and not yet divided."""
        raise NotImplementedError


class LikelihoodLoss(BaseLoss):
    """A loss of how likely words are, whoever said them: no ratio, no KL of an update."""

    reads_likelihoods: ClassVar[bool] = True
    entropy: ClassVar[float] = 0.0  # type: ignore[misc]
    target_kl: ClassVar[float | None] = None  # type: ignore[misc]
    per_family: ClassVar[bool] = False  # type: ignore[misc]


class ImitationLoss(LikelihoodLoss):
    """Minus the log-likelihood, weighted by advantages."""

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Return the sum of -weight log p over imitated tokens; its mean is over those with a
        weight."""
        weights = torch.from_numpy(batch.advantages * batch.mask).to(outputs.logprobs.device)
        return Loss(-(outputs.logprobs * weights).sum(), float((weights > 0).sum()))


def importance_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def kl_estimate(logprobs: Tensor, reference: Tensor, *, form: Estimator) -> Tensor:
    """Return the KL to the reference from single tokens, d = reference - logprobs: [N].

    d = -0.2: k1 0.2, k2 0.02, k3 0.018731. On-policy, only k2 as a loss has the gradient of the
    KL itself; that of k1 is zero (joschu.net/blog/kl-approx.html).
    """
    d = reference - logprobs
    if form == "k1":
        return -d
    if form == "k2":
        return d * d / 2
    return importance_ratio(d) - 1 - d


def value_loss(values: Tensor, old: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """PPO's clipped value loss for each token [N]; old .5, new 1.0, return .9, clip .2 -> 0.02."""
    bounded = old + (values - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (bounded - returns) ** 2)


def per_turn(values: Tensor, batch: Batch) -> Tensor:
    """Sum over the tokens of each turn: [N] -> [S]."""
    turn = torch.from_numpy(batch.turn).long().to(values.device)
    return values.new_zeros(len(batch.turn_ids)).index_add(0, turn, values)


def aggregate(
    per_token: Tensor, kept: Tensor, batch: Batch, *, agg: Aggregation, turn_length: int | None
) -> tuple[Tensor, float]:
    """Sum of a loss [N] and what to divide it by, both to be added over micro-batches.

    `kept` [N] is 1 for the tokens that carry loss: sampled and not rejected. Turns of 2 and 6
    tokens, A = +1 and -1, rho = 1: `token` 4 / 8, `turn_mean` 0 / 2, `turn_sum` with turn_length
    10: 0.4 / 2.
    """
    per_token = per_token * kept
    length_S = per_turn(kept, batch)
    if agg == "token":
        sampled = float(batch.mask.sum())
        return per_token.sum(), batch.num_tokens - sampled + float(length_S.sum())
    count = batch.num_turns - float((length_S == 0).sum())
    if agg == "turn_mean":
        return (per_turn(per_token, batch) / length_S.clamp(min=1.0)).sum(), count
    assert turn_length is not None, "turn_sum needs its constant"
    return per_token.sum() / turn_length, count
