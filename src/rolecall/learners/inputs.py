"""Holds what a learner is made of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from rolecall.config.optimizer import Optimizer
from rolecall.core.json_types import Options
from rolecall.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class LearnerInputs:
    """Holds what a learner of one policy is made of.

    A learner of your own is a class that is called with these and its options.
    """

    model: LanguageModel  # the handle that the embedded engine samples from
    optimizer: Optimizer
    total_updates: int  # optimizer steps of the whole run
    reference: LanguageModel | Literal["base"] | None  # for KL; "base": the adapter switched off
    head: Optimizer | None  # of value heads, where the algorithm needs them
    heads: int  # how many: the n-th values an agent's n-th turn of an episode
    checkpoint_activations: bool
    share_prefixes: bool
    offloads: bool  # between updates moments, masters and the reference are not on the device

    def as_arguments(self) -> Options:
        return {field.name: getattr(self, field.name) for field in fields(self)}
