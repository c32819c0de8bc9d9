"""Says what a rank builds a learner of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter

SHARDS = "shards"  # folder of a checkpoint with what each sharded rank holds
Kind = Literal["replicated", "fsdp"]


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """A policy's learner, without any weight: these are read on the ranks."""

    kind: Kind
    base: str
    adapter: Adapter | None
    seed: int  # of the adapter's first weights
    optimizer: Optimizer
    total_updates: int
    reference: str | None  # "initial", or a base
    head: Optimizer | None  # of value heads
    heads: int
    dtype: str
    checkpoint_activations: bool = False
    share_prefixes: bool = True
    offloads: bool = False
    context_parallel: int = 1  # ranks that share a row
    chat_template: str | None = None  # in place of the base's own


@dataclass(frozen=True, slots=True)
class Built:
    """Holds what a rank reports of the learner that it has built."""

    num_bytes: int  # of what `write_weights` writes
    exact: bool
    has_reference: bool
    shares_prefixes: bool
