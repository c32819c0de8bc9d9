"""The base classes of losses: what the trainer asks of any of them.

A loss declares the options that it reads. An algorithm names its loss among its bases, so that all
options stand beside one another in YAML.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from rolecall.core.interfaces.algorithm import Loss, Outputs
from rolecall.core.types import Batch, Floats, Turn, spread


class BaseLoss(BaseModel):
    """What every loss has: how often and on which turns a step's updates compute it."""

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
        for name, field in cls.model_fields.items():
            owner = next(kind for kind in kinds if name in get_annotations(kind))
            if repr(owner.model_fields[name]) != repr(field):
                cls.model_fields[name] = owner.model_fields[name]
                cls.model_rebuild(force=True)

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def needs_prox(self) -> bool:
        """Return whether the learner's log-probs must be computed before the first optimizer step.

        A loss without a ratio to them needs none.
        """
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
