"""The hyperparameters of AdamW: clipping, decay, and the schedule of the learning rate."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Decay = Annotated[float, Field(ge=0, lt=1)]


class Optimizer(BaseModel):
    """AdamW with gradient clipping and a schedule."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    lr: float | None = Field(None, gt=0, le=10)
    """Learning rate; by default 1e-6, and 2e-5 for an adapter."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and the squared gradient."""
    eps: float = Field(1e-8, gt=0, le=1)
    """Small number added to the denominator of the update."""
    weight_decay: float = Field(0.0, ge=0, le=10)
    """Decoupled weight decay of matrices. Norms, biases and embeddings do not decay."""
    clip: float = Field(1.0, gt=0, le=1e9)
    """Largest gradient norm of a policy; a larger gradient is scaled down to it."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up; linear and cosine end at min_lr_ratio."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate at which linear and cosine end."""
    warmup_steps: int = Field(0, ge=0, le=1_000_000_000)
    """Number of updates over which the learning rate rises from 0."""
    warmup_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of all updates of the run over which the learning rate rises, instead of a number."""

    @model_validator(mode="after")
    def _warm_up_once(self) -> Self:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("warmup_steps and warmup_ratio say the same; remove one of them")
        if self.min_lr_ratio and self.schedule == "constant":
            raise ValueError(
                "min_lr_ratio has no effect with a constant schedule; write linear or cosine, or "
                "remove it"
            )
        return self

    def lr_at(self, update: int, *, total: int) -> float:
        """Learning rate of update 0, 1, ... of `total`."""
        assert self.lr is not None
        warmup = self.warmup_steps or round(self.warmup_ratio * total)
        if update < warmup:
            return self.lr * (update + 1) / (warmup + 1)
        share = (update - warmup) / max(1, total - warmup)
        fall = {
            "constant": 1.0,
            "linear": 1.0 - share,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * share)),
        }
        least = self.min_lr_ratio
        return self.lr * (least + (1.0 - least) * max(0.0, fall[self.schedule]))
