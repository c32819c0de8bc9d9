"""The base class of algorithms: how turns are credited, and the loss of a packed batch.

An algorithm is whom a turn is compared with, plus a loss. A new one is a subclass that writes
`credit`; its fields are its hyperparameters and its YAML keys.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from torch import Tensor

from rolecall.algorithms.corrections import REJECTS, Correction, correct
from rolecall.algorithms.groups import CreditedTurn
from rolecall.algorithms.losses import (
    Aggregation,
    Estimator,
    aggregate,
    clipped_objective,
    kl_estimate,
)
from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.interfaces.critic import Chooser, Critic, Discriminator, Judge
from rolecall.core.types import Batch, Episode, Floats, Group, Pair, Swap, Turn, spread
from rolecall.critics.inputs import CriticInputs

Rows = Literal["preferences", "demonstrations"]  # of a data file
# Settings of the loss and of the optimizer steps: credit is the same whatever they are.
OUTSIDE_CREDIT = frozenset(
    {"clip_low", "clip_high", "dual_clip", "anchor", "correction", "agg", "turn_length", "kl_form",
     "entropy", "per_family", "epochs", "minibatches", "target_kl"}
)  # fmt: skip
# Settings that losses of another kind, such as those of dpo and sft, do not read.
OF_CLIPPED_LOSS = (
    "clip_low", "clip_high", "dual_clip", "anchor", "correction", "agg", "turn_length", "kl",
    "kl_in", "kl_form", "entropy", "per_family", "target_kl",
)  # fmt: skip
# (an episode, what to change) -> the episode that the same seeds then give
Replay = Callable[[Episode, Swap | None], Coroutine[Any, Any, Episode]]


class Algorithm(BaseModel, ABC):
    """Hyperparameters that every algorithm here has, the hooks, and the clipped policy loss."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    min_group: ClassVar[int] = 2
    """Fewest episodes of a task that can be compared."""
    critic: ClassVar[str | None] = None
    """Name of the critic it needs, under which `critics` of a config describes it: `agent` is a
    value head on each policy, which the learner makes; any other one comes of `make_critic`."""
    critic_reads: ClassVar[bool] = False
    """Whether the critic has a model of its own, `critics.NAME.base`."""
    discriminator: ClassVar[str | None] = None
    """Name of another critic, which pays turns before credit is given. It has a model of its own,
    and comes of `make_discriminator`."""
    compares_candidates: ClassVar[bool] = False
    """Whether it trains on candidates that were not played."""
    needs_candidates: ClassVar[bool] = False
    """Without them it has nothing to compare."""
    one_policy_at_a_time: ClassVar[bool] = False
    """Policies are updated in random order, each followed by `after_update`."""
    filters_groups: ClassVar[bool] = False
    """Its `keep_group` may filter groups out, which are then replaced by new tasks."""
    takes_data: ClassVar[Rows | None] = None
    """The rows of a file on which it can train instead of turns that its policies sampled."""
    answers_data: ClassVar[bool] = False
    """Its policies answer the prompts of the file too: it compares both, and needs the file."""
    keep_together: ClassVar[bool] = False
    """Its loss is one of pairs of turns."""
    reads_likelihoods: ClassVar[bool] = False
    """Its loss is one of likelihoods, at temperature 1, whoever said the words and however they
    were sampled. Other losses compare with the sampler, so they have its temperature."""
    in_credit: ClassVar[frozenset[str]] = frozenset()
    """Fields that credit alone reads: agents that share a policy may differ in them. In all others
    they must be equal, for the policy has one loss."""
    outside_credit: ClassVar[frozenset[str]] = OUTSIDE_CREDIT
    """Fields that credit never reads. Agents that differ in these alone are credited together, by
    one object; each has its own values of them in the loss. `kl` is one of them while the KL is a
    loss."""
    without_effect: ClassVar[tuple[str, ...]] = ()
    """Fields below that its loss does not read."""

    clip_low: float = Field(0.2, ge=0, lt=1)
    """The probability ratio counts no lower than 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0, le=1000)
    """The probability ratio counts no higher than 1 + clip_high."""
    dual_clip: float | None = Field(None, gt=1, le=1000)
    """A negative advantage counts at most this many times."""
    anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: the learner's log-probs at the start of the update, or the
    sampler's."""
    correction: Correction | None = None
    """Weight for what sampler and learner disagree on; by default token_tis with the learner as
    anchor and none with the sampler."""
    agg: Aggregation = "token"
    """Mean over all sampled tokens, mean of the turns' means, or sum of a turn over a constant."""
    turn_length: int | None = Field(None, ge=1, le=10_000_000)
    """The constant of `agg: turn_sum`; by default the largest max_tokens of the team."""
    mask_truncated: bool = False
    """Leave turns that were cut by length out of loss and statistics."""
    kl: float = Field(0.0, ge=0, le=1000)
    """Coefficient of the KL to the reference; above 0 the policies need one."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL is a loss, or taken from the reward of the turn (as old - ref)."""
    kl_form: Estimator = "k3"
    """Estimator of the KL as a loss."""
    entropy: float = Field(0.0, ge=0, le=1000)
    """Coefficient of an entropy bonus."""
    per_family: bool = False
    """Give the advantages of each task family mean 0 and spread 1 over a policy's tokens, after the
    algorithm's own, so that no family drowns the others. Families are the parts of a mixed
    environment; without one, all tasks are one family."""
    epochs: int = Field(1, ge=1, le=1000)
    """Epochs over the turns of a step."""
    minibatches: int = Field(1, ge=1, le=100_000)
    """Optimizer steps in an epoch, each on its share of the turns."""
    target_kl: float | None = Field(None, gt=0, le=1000)
    """Leave out the rest of a step's optimizer steps once the policy is further from where they
    began: mean of ratio - 1 - log ratio over the tokens of one of them, in nats."""

    _team: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="after")
    def _check_effects(self) -> Algorithm:
        options = self.model_fields_set
        for name in self.without_effect:
            if name in options:
                raise ValueError(f"{name} has no effect in {type(self).__name__}'s loss; remove it")
        if self.agg != "turn_sum" and "turn_length" in options:
            raise ValueError("turn_length has no effect unless agg is turn_sum; remove it")
        if "kl_form" in options and (not self.kl or self.kl_in == "reward"):
            raise ValueError(
                "kl_form has no effect unless the KL is a loss (kl > 0, kl_in: loss); remove it"
            )
        if "kl_in" in options and not self.kl:
            raise ValueError("kl_in has no effect while kl is 0; remove it, or set kl above 0")
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

    # --- what the trainer asks ---

    def join_team(self, agents: Iterable[str]) -> None:
        """Take note of all agents that the run trains, also those with another algorithm."""
        self._team = frozenset(agents)

    def trained_agents(self, speakers: Iterable[str]) -> list[str]:
        """Return all agents that the run trains, sorted.

        Outside of a run no team is known, and these are the agents that have spoken.
        """
        return sorted(self._team or set(speakers))

    def shares_credit(self, other: Algorithm) -> bool:
        """Return whether both assign the same credit, so that one object can do it for both."""
        return self._credit_settings() == other._credit_settings()

    def _credit_settings(self) -> tuple[type[Algorithm], dict[str, Any]]:
        kind = type(self)
        outside = kind.outside_credit | ({"kl"} if self.kl_in == "loss" else set())
        names = sorted(kind.model_fields.keys() - outside)
        return kind, {name: getattr(self, name) for name in names}

    @property
    def moves_policies(self) -> bool:
        """False: what it learns is in its critic, and the weights of its agents stay."""
        return True

    @property
    def demonstrations(self) -> str | None:
        """A file of them that its critic reads, some for each of its agents; "": it is missing."""
        return None

    @property
    def critics(self) -> dict[str, bool]:
        """The critics that it needs by name, and whether each has a model of its own."""
        needed = {} if self.critic is None else {self.critic: self.critic_reads}
        return needed if self.discriminator is None else needed | {self.discriminator: True}

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0

    @property
    def needs_prox(self) -> bool:
        """Return whether the learner's log-probs must be computed before the first optimizer step.

        A loss that does not read `anchor` has no ratio to them.
        """
        several = self.epochs * self.minibatches > 1 or self.one_policy_at_a_time
        return several and "anchor" not in self.without_effect

    @property
    def skips_zero(self) -> bool:
        """Return whether a turn without advantage has no gradient and changes no normaliser."""
        return not (
            (self.kl and self.kl_in == "loss")
            or self.entropy
            or self.critic == "agent"
            or self.keep_together
            or self._correction in REJECTS
        )

    # --- hooks, in the order of a step ---

    def make_critic(self, parts: CriticInputs) -> Critic | None:
        """Make the critic that `critic` names, once, as the run is built."""
        return None

    def make_discriminator(self, parts: CriticInputs) -> Discriminator:
        """Make the discriminator that `discriminator` names, once, as the run is built."""
        raise NotImplementedError

    def wrap(self, inner: Algorithm) -> Algorithm:
        """Return what trains instead of the algorithm that a key `inner` names.

        Raises ValueError where that one does not fit.
        """
        raise NotImplementedError

    def keep_group(self, group: Group) -> bool:
        """Return whether to keep the group; if not, the step samples a new task instead."""
        return True

    async def prepare(self, group: Group, replay: Replay) -> None:
        """May replay episodes of the group and note on their turns what came out.

        Replays may run together: no more do than `rollout.concurrency` says.
        """

    @abstractmethod
    def credit(self, episodes: list[Episode]) -> None:
        """Write `turn.advantages` [T] of every trained turn. Pure and repeatable."""

    def pairs(self, turns: list[Turn]) -> list[Pair]:
        """Return the pairs that `credit` found among these turns, with `keep_together`."""
        return []

    def chooser(self, critic: Any) -> Chooser | None:
        """Return who chooses between several candidates of what agents say in a call, if anyone."""
        return None

    def judge(self, critic: Any) -> Judge | None:
        """Return who judges what agents say before it is played, in each call; None: nobody."""
        return None

    def fit(self, episodes: list[Episode], critic: Any) -> dict[str, float]:
        """Teach the critic what the episodes earned, after the policies' updates; its metrics."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what the algorithm itself counted in this step."""
        return {}

    def after_update(self, policy: str, episodes: list[Episode]) -> None:
        """Note, with `one_policy_at_a_time`, that the turns of `policy` have new_logprobs now."""

    def after_step(self, step: int) -> None:
        """All policies are updated."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know beside the weights; JSON types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, f"{type(self).__name__} keeps no state"

    # --- credit ---

    def credited_turns(self, episodes: list[Episode]) -> list[CreditedTurn]:
        """Return the turns that credit compares, each with its episode.

        The advantages of all trained turns are set to 0 first. Raises ValueError if a score is not
        finite.
        """
        turns = []
        for episode in episodes:
            for turn in episode.turns:
                if not turn.trained or turn.tokens is None:
                    continue
                if not (turn.chosen or self.compares_candidates):
                    continue
                if turn.candidate_error:
                    continue  # its world raised: no data, and in no normaliser
                turn.advantages, turn.weight = spread(turn, 0.0), 1.0
                if self.mask_truncated and turn.finish == "length":
                    continue
                if not math.isfinite(episode.total(turn)):
                    raise ValueError(f"the score of {turn.agent} in {episode.id} is not finite")
                turns.append((episode, turn))
        return turns

    def own_reward(self, episode: Episode, turn: Turn) -> float:
        """r_t, less the KL to the reference where that is part of a trained turn's reward."""
        if not turn.trained or turn.tokens is None:
            return turn.score
        return turn.score + float(self.kl_rewards(turn).sum(dtype="float64"))

    def kl_rewards(self, turn: Turn) -> Floats:
        """-kl (old - ref) for each token [T]; zeros unless `kl_in: reward`."""
        if not self.kl or self.kl_in == "loss":
            return spread(turn, 0.0)
        assert turn.training.ref_logprobs is not None, f"turn {turn.id} has no reference log-probs"
        assert turn.logprobs is not None, f"turn {turn.id} has no log-probs"
        return -self.kl * (turn.logprobs - turn.training.ref_logprobs)

    # --- loss ---

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """Compute the policy objective, negated and summed, with KL and entropy if they are on."""
        logprobs = outputs.logprobs

        def column(values: Floats) -> Tensor:
            return torch.from_numpy(values).to(logprobs.device)

        assert batch.old_logprobs is not None, "nobody sampled these turns"
        old, mask = column(batch.old_logprobs), column(batch.mask)
        prox = logprobs.detach() if batch.prox_logprobs is None else column(batch.prox_logprobs)
        weight, kept = correct(prox - old, batch, kind=self._correction)
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
        if self._correction in REJECTS:
            sums["rejected"] = float((mask - kept).sum())
        if len(parts) > 1:
            sums |= {name: float(term_sum.detach()) for name, (term_sum, _) in parts.items()}
        return Loss(total=total, count=parts["policy_loss"][1], sums=sums)

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return each token's share of the policy's objective [N], and where it is clipped [N]."""
        return clipped_objective(
            logprobs, anchor, advantages,
            low=self.clip_low, high=self.clip_high, dual=self.dual_clip,
        )  # fmt: skip

    def more_terms(self, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Further losses of single tokens [N], by name; PPO's value loss is one."""
        return {}

    @property
    def _correction(self) -> Correction:
        return self.correction or ("token_tis" if self.anchor == "learner" else "none")
