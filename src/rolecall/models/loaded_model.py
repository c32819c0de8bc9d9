"""Describes what a model of transformers can do here, beside the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class ModelCapabilities:
    """Holds the facts about a model that were measured when it was loaded."""

    rope_limit: int | None = None  # tokens of a row beyond which it is rotated by other factors
    separate_rows_reason: str = ""  # why each row is computed alone; "" if rows share a pass
    scales_logits: bool = False  # the logits are not just the head of the decoder's states
    is_trimmed: bool = False  # the last layer can be told which tokens to compute

    @property
    def has_separate_rows(self) -> bool:
        """Return whether each row is computed alone, by transformers' own implementation."""
        return bool(self.separate_rows_reason)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model of transformers that is set up for flat rows, and what it can do."""

    model: PreTrainedModel | PeftModel
    capabilities: ModelCapabilities
