"""Reads how large a model is from its config, without loading a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rolecall.config.schema import Adapter
from rolecall.errors import first_line
from rolecall.models.language_model import heads_of
from rolecall.models.loading import locate


@dataclass(frozen=True, slots=True)
class Size:
    """Counts of one base model."""

    parameters: int
    cache_per_token: int  # numbers that one token's keys and values take in all layers
    model: Any  # on torch's meta device: shapes without numbers

    def adapter_parameters(self, adapter: Adapter) -> int:
        """Of the two matrices [rank, in] and [out, rank] beside each adapted layer."""
        wanted = adapter.targets
        head = self.model.get_output_embeddings()
        return sum(
            adapter.rank * (layer.in_features + layer.out_features)
            for name, layer in self.model.named_modules()
            if isinstance(layer, torch.nn.Linear)
            if (layer is not head if wanted == "all-linear" else _is_one_of(name, wanted))
        )


def size_of(base: str) -> Size:
    """Raises ValueError where the base's config is not on this machine or not one of a model."""
    try:
        config = AutoConfig.from_pretrained(locate(base), local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"base {base!r}: {first_line(error)}") from error
    text = config.get_text_config()
    heads, size = heads_of(text)
    return Size(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        cache_per_token=2 * text.num_hidden_layers * heads * size,
        model=model,
    )


def _is_one_of(name: str, wanted: str | list[str]) -> bool:
    """As PEFT reads names of modules: the last part of a dotted name, or the end of it."""
    names = [wanted] if isinstance(wanted, str) else wanted
    return any(name == one or name.endswith(f".{one}") for one in names)
