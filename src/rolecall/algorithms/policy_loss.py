"""The loss of policies: an objective of each token, the KL to a reference, an entropy bonus."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from rolecall.algorithms.corrections import HIGH, LOW, REJECTS, Correction, correct
from rolecall.algorithms.losses import (
    Aggregation,
    BaseLoss,
    Estimator,
    aggregate,
    importance_ratio,
    kl_estimate,
)
from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.types import Batch, Floats, Turn, spread


class PolicyLoss(BaseLoss):
    """The plain policy gradient, with KL and entropy, corrected for what the sampler did."""

    anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: the learner's log-probs at the start of the update, or the
    sampler's."""
    correction: Correction | None = None
    """Weight for what sampler and learner disagree on; by default token_tis with the learner as
    anchor and none with the sampler."""
    correction_low: float = Field(LOW, gt=0, le=1)
    """Masks reject ratios of learner to sampler below this."""
    correction_high: float = Field(HIGH, ge=1, le=1e6)
    """Masks reject ratios of learner to sampler above this; truncated weights end here."""
    correction_veto: float | None = Field(None, gt=0, lt=1)
    """Reject a whole turn with a token whose ratio of learner to sampler is below this, such as
    1e-4."""
    agg: Aggregation = "token"
    """Mean over all sampled tokens, mean of the turns' means, or sum of a turn over a constant."""
    turn_length: int | None = Field(None, ge=1, le=10_000_000)
    """The constant of `agg: turn_sum`; by default the largest max_tokens of the team."""
    kl: float = Field(0.0, ge=0, le=1000)
    """Coefficient of the KL to the reference; above 0 the policies need one."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Use the KL as a loss, or subtract it from the reward of the turn (as old - ref)."""
    kl_form: Estimator = "k3"
    """Estimator of the KL as a loss."""
    kl_target: float | None = Field(None, gt=0, le=1e6)
    """KL of a turn, in nats, that the coefficient of the KL in the reward is moved towards after
    each step, for each policy its own; by default it stays."""
    horizon: int = Field(10_000, ge=1, le=1_000_000_000)
    """Turns over which the coefficient moves."""
    entropy: float = Field(0.0, ge=0, le=1000)
    """Coefficient of an entropy bonus."""
    per_family: bool = False
    """Give the advantages of each task family mean 0 and spread 1 over a policy's tokens, after the
    algorithm's own, so that no family drowns the others. Families are the parts of a mixed
    environment; without one, all tasks are one family."""
    target_kl: float | None = Field(None, gt=0, le=1000)
    """Leave out the rest of a step's optimizer steps once the policy is further from where they
    began: mean of ratio - 1 - log ratio over the tokens of one of them, in nats."""

    _kl_coefficients: dict[str, float] = PrivateAttr(default_factory=dict)

    @property
    def kl_coefficients(self) -> dict[str, float]:
        """The coefficients by policy that a target has moved; others have `kl`."""
        return self._kl_coefficients

    @model_validator(mode="after")
    def _check_effects(self) -> PolicyLoss:
        options = self.model_fields_set
        if self.agg != "turn_sum" and "turn_length" in options:
            raise ValueError("turn_length has no effect unless agg is turn_sum; remove it")
        if "kl_form" in options and (not self.kl or self.kl_in == "reward"):
            raise ValueError(
                "kl_form has no effect unless the KL is a loss (kl > 0, kl_in: loss); remove it"
            )
        if "kl_in" in options and not self.kl:
            raise ValueError("kl_in has no effect while kl is 0; remove it, or set kl above 0")
        if "kl_target" in options and (not self.kl or self.kl_in == "loss"):
            raise ValueError(
                "kl_target has no effect unless the KL is part of the reward (kl > 0, kl_in: "
                "reward); remove it"
            )
        if self.kl_target is None and "horizon" in options:
            raise ValueError("horizon has no effect without kl_target; set it, or remove this")
        if self.target_kl is not None and not self.needs_prox:
            raise ValueError(
                "target_kl has no effect with one optimizer step a step; set epochs or minibatches "
                "above 1, or remove it"
            )
        if self.anchor == "sampler" and (self.correction or "none").endswith("tis"):
            raise ValueError(
                f"correction {self.correction!r} with anchor 'sampler' would count the ratio "
                "twice; use a mask, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_bounds(self) -> PolicyLoss:
        options, kind = self.model_fields_set, self._correction
        if "correction_low" in options and kind not in REJECTS:
            raise ValueError(
                f"correction_low has no effect with correction {kind!r}, which is no mask; write "
                "token_mis, sequence_mis or geometric_mis, or remove it"
            )
        for name in ("correction_high", "correction_veto"):
            if name in options and kind == "none":
                raise ValueError(
                    f"{name} has no effect without a correction; set correction, or remove it"
                )
        return self

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0

    @property
    def needs_prox(self) -> bool:
        return self.epochs * self.minibatches > 1 or self.one_policy_at_a_time

    @property
    def skips_zero(self) -> bool:
        return type(self).more_terms is PolicyLoss.more_terms and not (
            (self.kl and self.kl_in == "loss") or self.entropy or self._rejects
        )

    @property
    def read_by_credit(self) -> frozenset[str]:
        in_reward = {"kl", "kl_target", "horizon"} if self.kl_in == "reward" else set()
        return super().read_by_credit | {"kl_in"} | in_reward

    def kl_rewards(self, turn: Turn) -> Floats:
        """Return -kl (old - ref) for each token [T]; zeros unless `kl_in: reward`."""
        if self.kl_in == "loss" or not self.kl:
            return spread(turn, 0.0)
        assert turn.training.ref_logprobs is not None, f"turn {turn.id} has no reference log-probs"
        assert turn.logprobs is not None, f"turn {turn.id} has no log-probs"
        coefficient = self._kl_coefficients.get(turn.policy, self.kl)
        return -coefficient * (turn.logprobs - turn.training.ref_logprobs)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Compute the policy objective, negated and summed, with KL and entropy if they are on."""
        logprobs = outputs.logprobs

        def column(values: Floats) -> Tensor:
            return torch.from_numpy(values).to(logprobs.device)

        assert batch.old_logprobs is not None, "nobody sampled these turns"
        old, mask = column(batch.old_logprobs), column(batch.mask)
        prox = logprobs.detach() if batch.prox_logprobs is None else column(batch.prox_logprobs)
        weight, kept = correct(
            prox - old,
            batch,
            kind=self._correction,
            low=self.correction_low,
            high=self.correction_high,
            veto=self.correction_veto,
        )
        if self.anchor == "sampler":
            weight = torch.ones_like(weight)  # the ratio to the sampler already holds it
        objective, clipped = self.objective(
            logprobs, prox if self.anchor == "learner" else old, column(batch.advantages), batch
        )
        kept = kept * mask
        terms = {"policy_loss": -objective * weight * column(batch.weight)}
        if self.kl and self.kl_in == "loss":
            assert batch.ref_logprobs is not None, "the KL needs reference log-probs"
            reference = column(batch.ref_logprobs)
            terms["kl_loss"] = self.kl * kl_estimate(logprobs, reference, form=self.kl_form)
        if self.entropy:
            assert outputs.entropies is not None, "the learner computed no entropies"
            terms["entropy_loss"] = -self.entropy * outputs.entropies
        terms |= self.more_terms(batch, outputs)
        parts = {
            name: aggregate(term, kept, batch, agg=self.agg, turn_length=self.turn_length)
            for name, term in terms.items()
        }
        total = torch.stack([term_sum for term_sum, _ in parts.values()]).sum()
        # Means over tokens or over turns: with the count of the loss, both are shares of 1.
        mean: Aggregation = "token" if self.agg == "token" else "turn_mean"
        share, _ = aggregate(clipped.float(), kept, batch, agg=mean, turn_length=None)
        sums = {"clip_share": float(share)}
        if self._rejects:
            sums["rejected"] = float((mask - kept).sum())
        if len(parts) > 1:
            sums |= {name: float(term_sum.detach()) for name, (term_sum, _) in parts.items()}
        return Loss(total, parts["policy_loss"][1], sums, clipped=clipped > 0)

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return each token's share of the policy's objective [N], and where it is clipped [N].

        Here it is rho A, whose gradient is A grad log p while rho is 1.
        """
        return importance_ratio(logprobs - anchor) * advantages, torch.zeros_like(logprobs)

    def more_terms(self, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Further losses of single tokens [N], by name; PPO's value loss is one."""
        return {}

    @property
    def _rejects(self) -> bool:
        return self._correction in REJECTS or self.correction_veto is not None

    @property
    def _correction(self) -> Correction:
        return self.correction or ("token_tis" if self.anchor == "learner" else "none")


class ClippedLoss(PolicyLoss):
    """The clipped policy loss of PPO, which most algorithms have."""

    clip_low: float = Field(0.2, ge=0, lt=1)
    """The probability ratio counts no lower than 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0, le=1000)
    """The probability ratio counts no higher than 1 + clip_high."""
    dual_clip: float | None = Field(None, gt=1, le=1000)
    """A negative advantage counts at most this many times."""

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return min(rho A, clamp(rho, 1 - clip_low, 1 + clip_high) A), and where it clips.

        low .2, high .28: (rho 1.3, A +1) -> 1.28; (0.7, -1) -> -0.8; (1.3, -1) -> -1.3. With
        `dual_clip` c, a negative A counts at most c times (1912.09729): c 3, (5, -1) -> -3.
        """
        ratio = importance_ratio(logprobs - anchor)
        free = ratio * advantages
        bounded = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        objective = torch.minimum(free, bounded * advantages)
        if self.dual_clip is not None:
            lowest = torch.maximum(objective, self.dual_clip * advantages)
            objective = torch.where(advantages < 0, lowest, objective)
        return objective, objective != free
