"""Measures what a layer keeps for its backward pass, on a small copy with the same proportions.

What is kept grows in proportion to the widths of a model, so a copy a few times narrower says it
for the whole in a fraction of a second, with the kernels that this machine trains with.

Legend: L = layers, N = tokens of a batch.
"""

from __future__ import annotations

import tempfile
from contextlib import redirect_stderr
from io import StringIO
from math import gcd
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rolecall.config.schema import Adapter
from rolecall.models.attention.layouts import Rows
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, with_adapters

WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
LAYERS, TOKENS = (2, 3), (32, 64)  # pairs whose differences are looked at
VOCABULARY = 256  # of a copy

_known: dict[str, float] = {}


def kept_per_token(config: Any, *, dtype: torch.dtype, adapter: Adapter | None) -> float:
    """Bytes that a layer keeps of one token until its backward pass; `config` of transformers.

    Raises ValueError for a model that cannot be trained here.
    """
    key = f"{config.to_json_string(use_diff=False)} {dtype} {adapter!r}"
    if key not in _known:
        times = gcd(*(getattr(config, name) for name in WIDTHS if getattr(config, name, None)))
        narrow = adapter and adapter.model_copy(update={"rank": max(1, adapter.rank // times)})
        few, many = (_kept(_copy(config, number, times), dtype, narrow) for number in LAYERS)
        _known[key] = times * ((many[1] - many[0]) - (few[1] - few[0])) / (TOKENS[1] - TOKENS[0])
    return _known[key]


def kept_in_last(config: Any, *, dtype: torch.dtype) -> float:
    """The same of the last layer, where few of its states are read: it computes no others."""
    key = f"last of {config.to_json_string(use_diff=False)} {dtype}"
    if key not in _known:
        times = gcd(*(getattr(config, name) for name in WIDTHS if getattr(config, name, None)))
        small = _kept(_copy(config, LAYERS[0], times), dtype, None, reads=1)
        others = (LAYERS[0] - 1) * kept_per_token(config, dtype=dtype, adapter=None)
        _known[key] = times * (small[1] - small[0]) / (TOKENS[1] - TOKENS[0]) - others
    return _known[key]


def _copy(config: Any, layers: int, times: int) -> Any:
    """A config of fewer and narrower layers."""
    told = config.to_dict()
    told |= {name: told[name] // times for name in WIDTHS if told.get(name)}
    told |= {"num_hidden_layers": layers, "vocab_size": VOCABULARY}
    if told.get("layer_types"):
        kinds = told["layer_types"]
        told["layer_types"] = [kinds[number % len(kinds)] for number in range(layers)]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        told[name] = None
    return type(config).from_dict(told)


def _kept(
    config: Any, dtype: torch.dtype, adapter: Adapter | None, *, reads: int | None = None
) -> list[int]:
    """Bytes that forward passes over `TOKENS` tokens keep, parameters aside.

    `reads`: the number of states that are read; None for all.
    """
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
        cpu = torch.device("cpu")
        loaded = load_model(folder, device=cpu, dtype=dtype, sampled=False)
    tokenizer: Any = SimpleNamespace(eos_token_id=0)
    model = LanguageModel(loaded, tokenizer)
    if adapter is not None:
        model = with_adapters(loaded, tokenizer, {"copy": adapter}, seed=0)["copy"]
    return [_kept_by(model, count, reads or count) for count in TOKENS]


def _kept_by(model: LanguageModel, count: int, reads: int) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in model.model.parameters()}
    kept: list[Tensor] = []  # so that no memory is used twice meanwhile

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    ids = torch.arange(count) % VOCABULARY
    layout = Rows([count], device=ids.device)
    with model.using(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.states(ids, layout.position, layout=layout, keep=torch.arange(count - reads, count))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in kept}
    return sum(storage.nbytes() for place, storage in storages.items() if place not in own)
