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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rolecall.config.schema import Adapter
from rolecall.models.attention.layouts import Rows
from rolecall.models.language_model import LanguageModel
from rolecall.models.loaded_model import LoadedModel
from rolecall.models.loading import load_model, with_adapters

if TYPE_CHECKING:
    from transformers import PretrainedConfig


WIDTHS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
LAYERS, TOKENS = (2, 3), (32, 64)  # pairs whose differences are looked at
VOCABULARY = 256  # of a copy

_known: dict[str, float | None] = {}


def kept_per_token(
    config: PretrainedConfig, *, dtype: torch.dtype, adapter: Adapter | None, fuses: bool = True
) -> float | None:
    """Bytes that a layer keeps of one token until its backward pass; `config` of transformers.

    `fuses`: whether it is trained by the loops for a CPU, which keep less than other kernels do.
    None for a family of which no narrower copy can be made. Raises ValueError for an adapter that
    the model cannot have.
    """
    key = f"{config.to_json_string(use_diff=False)} {dtype} {adapter!r} {fuses}"
    if key not in _known:
        times = _times(config)
        narrow = adapter and adapter.model_copy(update={"rank": max(1, adapter.rank // times)})
        grown = [_grown(copy, narrow) for copy in _copies(config, dtype, fuses)]
        _known[key] = times * (grown[1] - grown[0]) if grown else None
    return _known[key]


def kept_in_last(
    config: PretrainedConfig, *, dtype: torch.dtype, fuses: bool = True
) -> float | None:
    """Return the same for a last layer of which few states are read: it computes no others."""
    key = f"last of {config.to_json_string(use_diff=False)} {dtype} {fuses}"
    if key not in _known:
        kept = kept_per_token(config, dtype=dtype, adapter=None, fuses=fuses)
        if kept is None:
            return None
        copy = _loaded(_copy(config, LAYERS[0]), dtype, fuses)
        whole = _times(config) * _grown(copy, None, reads=1)
        _known[key] = whole - (LAYERS[0] - 1) * kept
    return _known[key]


def _times(config: PretrainedConfig) -> int:
    """Return how many times narrower a copy can be."""
    return gcd(*_widths(config).values())


def _widths(config: PretrainedConfig) -> dict[str, int]:
    widths = {name: getattr(config, name, None) for name in WIDTHS}
    return {name: width for name, width in widths.items() if isinstance(width, int) and width}


def _copies(config: PretrainedConfig, dtype: torch.dtype, fuses: bool) -> list[PretrainedConfig]:
    """Models of `LAYERS` layers; none where the numbers of a family must fit one another."""
    try:
        return [_loaded(_copy(config, layers), dtype, fuses) for layers in LAYERS]
    except Exception:  # each family checks its numbers in its own way
        return []


def _copy(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """Return a config of fewer and narrower layers."""
    fields, own_names, times = config.to_dict(), type(config).attribute_map, _times(config)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            fields[name] = [value[number % len(value)] for number in range(layers)]
    small = {name: width // times for name, width in _widths(config).items()}
    small |= {"num_hidden_layers": layers, "vocab_size": VOCABULARY}
    small |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return type(config).from_dict(
        fields | {own_names.get(name, name): small[name] for name in small}
    )


def _loaded(config: PretrainedConfig, dtype: torch.dtype, fuses: bool) -> LoadedModel:
    with tempfile.TemporaryDirectory() as folder:
        with redirect_stderr(StringIO()):
            AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
        cpu = torch.device("cpu")
        return load_model(folder, device=cpu, dtype=dtype, sampled=False, fuses=fuses)


def _grown(loaded: LoadedModel, adapter: Adapter | None, *, reads: int | None = None) -> float:
    """Bytes of a token that a forward pass keeps, parameters aside.

    `reads`: the number of tokens whose logits are computed; None for all.
    """
    tokenizer: Any = SimpleNamespace(eos_token_id=0, get_vocab=dict)
    model = LanguageModel(loaded, tokenizer)
    if adapter is not None:
        model = with_adapters(loaded, tokenizer, {"copy": adapter}, seed=0)["copy"]
    few, many = (_kept_by(model, count, reads or count) for count in TOKENS)
    return (many - few) / (TOKENS[1] - TOKENS[0])


def _kept_by(model: LanguageModel, count: int, reads: int) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in model.model.parameters()}
    kept: list[Tensor] = []  # so that no memory is used twice meanwhile

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    ids = torch.arange(count) % VOCABULARY
    layout = Rows([count], device=ids.device)
    with model.using(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.logits(ids, layout.position, layout=layout, keep=torch.arange(count - reads, count))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in kept}
    return sum(storage.nbytes() for address, storage in storages.items() if address not in own)
