"""Reads how large a model is from its config, without loading a weight."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rolecall.config.schema import Adapter
from rolecall.core.errors import first_line
from rolecall.models.base_location import locate
from rolecall.models.language_model import get_key_value_heads, get_layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Size:
    """Counts of one base model."""

    parameters: int
    embedding: int  # numbers of the table of tokens; as many again in a head of its own
    layer: int  # parameters of the largest layer
    num_layers: int
    width: int  # of a state
    vocabulary: int
    max_length: int
    cache_per_token: int  # numbers of one token's keys and values in all layers, 0 if unknown
    config: PretrainedConfig  # of transformers
    model: PreTrainedModel  # on torch's meta device: shapes without numbers

    @property
    def gathered_numbers(self) -> int:
        """The most that FSDP2 gathers at once: what is no layer, a layer and the next one."""
        return (1 if self.is_tied else 2) * self.embedding + 2 * self.layer

    @property
    def is_tied(self) -> bool:
        """Return whether the head is the table of tokens."""
        table, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        return head.weight is table.weight

    @property
    def body(self) -> int:
        """Parameters without a head of its own."""
        return self.parameters - (0 if self.is_tied else self.embedding)

    @property
    def linear_names(self) -> set[str]:
        """Last names of the layers that an adapter can have: {"q_proj", "up_proj", ...}."""
        head = self.model.get_output_embeddings()
        return {
            name.rpartition(".")[2]
            for name, layer in self.model.named_modules()
            if isinstance(layer, torch.nn.Linear) and layer is not head
        }

    def adapter_parameters(self, adapter: Adapter) -> int:
        """Count those of the matrices [rank, in] and [out, rank] beside each adapted layer."""
        targets = adapter.targets
        head = self.model.get_output_embeddings()
        return sum(
            adapter.rank * (layer.in_features + layer.out_features)
            for name, layer in self.model.named_modules()
            if isinstance(layer, torch.nn.Linear)
            if (layer is not head if targets == "all-linear" else _matches(name, targets))
        )


def get_size(base: str) -> Size:
    """Return the size of a base.

    Raises ValueError if the base's config is neither on this machine nor a known one.
    """
    try:
        config = _config(base)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"base {base!r}: {first_line(error)}") from error
    text = config.get_text_config()
    heads, size = get_key_value_heads(text)
    table = model.get_input_embeddings().weight
    layers = get_layers(model)
    return Size(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        embedding=table.numel(),
        layer=max(sum(p.numel() for p in layer.parameters()) for layer in layers),
        num_layers=len(layers),
        width=table.shape[1],
        vocabulary=model.get_output_embeddings().weight.shape[0],
        max_length=getattr(text, "max_position_embeddings", 1 << 30),
        cache_per_token=2 * text.num_hidden_layers * heads * size,
        config=text,
        model=model,
    )


def context_length(base: str) -> int | None:
    """Return the most tokens of a row; None where the base's config is not here or names none."""
    try:
        config = _config(base)
    except (OSError, ValueError, KeyError):
        return None
    length: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return length


def _config(base: str) -> PretrainedConfig:
    """Return the config of the base's files; the shapes of a few public models are built in."""
    location = locate(base)
    try:
        return AutoConfig.from_pretrained(location, local_files_only=True)
    except OSError:
        shapes = json.loads((files("rolecall.models") / "known_shapes.json").read_text())
        if location not in shapes:
            raise
        return AutoConfig.for_model(**shapes[location])


def _matches(name: str, wanted: str | list[str]) -> bool:
    """Match names of modules as PEFT does: the last part of a dotted name, or the end of it."""
    names = [wanted] if isinstance(wanted, str) else wanted
    return any(name == one or name.endswith(f".{one}") for one in names)
