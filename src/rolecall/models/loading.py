"""Loads the models and tokenizers of bases, and rejects a model that would compute wrongly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.turn_form import stop_ids
from rolecall.config.schema import Adapter
from rolecall.core.errors import first_line
from rolecall.models import foreign_attention, row_rope
from rolecall.models.attention import layouts
from rolecall.models.base_location import exported_name, locate
from rolecall.models.chat_templates import PLAIN, read_chat_template
from rolecall.models.cpu.fused_attention import fuse_heads
from rolecall.models.cpu.fused_layers import fuse
from rolecall.models.cpu.trained_layer import fuse_whole
from rolecall.models.cpu.trained_products import use_fastest
from rolecall.models.exact_head import make_exact
from rolecall.models.foreign_attention import UNLIKE, close, probe
from rolecall.models.language_model import LanguageModel
from rolecall.models.last_layer import trim
from rolecall.models.loaded_model import LoadedModel, ModelCapabilities
from rolecall.models.quantized import Quantization, check_device, quantize
from rolecall.models.tokenizers import read_tokenizer

transformers_logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)


def load_tokenizer(base: str, *, chat_template: str | None = None) -> Tokenizer:
    """Return the tokenizer of a base, with another chat template if one is named.

    `chat_template`: as in a config. Raises ValueError if the tokenizer or its template is missing.
    """
    tokenizer = read_tokenizer(locate(base))
    if chat_template is not None:
        tokenizer.chat_template = read_chat_template(chat_template)
    if not tokenizer.chat_template:
        raise ValueError(
            f"base {base!r} has no chat template, so its agents cannot be prompted; name an "
            "instruct model, or set the policy's chat_template: plain"
        )
    if tokenizer.eos_token is None and chat_template == PLAIN:
        raise ValueError(
            f"base {base!r} has no end-of-text token (eos_token), which chat_template: plain "
            "needs; write the path of a Jinja file"
        )
    return tokenizer


def load_model(
    base: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    sampled: bool = True,
    fuses: bool = True,
    quantization: Quantization = "none",
) -> LoadedModel:
    """Load the weights of a base, set up for flat rows.

    `sampled`: whether the embedded engine is to sample from it. Otherwise a model also loads if its
    layers need a row of their own each (`LanguageModel.shares_prefixes`). `fuses`: on a CPU with
    loops of our own, whose weights PyTorch can then no longer free. `quantization`: of its linear
    layers, which then cannot be trained. Raises ValueError if weights are missing and for what the
    model cannot be used for.
    """
    path = locate(base)
    if quantization != "none":
        check_device(quantization, device)  # before much is read
    model = _read(base, path, dtype)
    if quantization != "none":
        quantize(model, quantization, device=device)
    return set_up(model, base, device=device, sampled=sampled, fuses=fuses)


def set_up(
    model: PreTrainedModel, base: str, *, device: torch.device, sampled: bool, fuses: bool
) -> LoadedModel:
    """Change a model of transformers for flat rows, in place. Raises ValueError if it cannot be."""
    if not getattr(model.config.get_text_config(), "max_position_embeddings", None):
        raise ValueError(
            f"base {base!r} does not say how long its context is (max_position_embeddings of its "
            "config): name another base"
        )
    model.name_or_path = model.config._name_or_path = exported_name(base)
    model.to(device).eval()
    make_exact(model)
    rules: foreign_attention.Rules = {}
    try:
        loaded = LoadedModel(model, ModelCapabilities(rope_limit=row_rope.install(model)))
    except ValueError as error:
        loaded = LoadedModel(model, ModelCapabilities(separate_rows_reason=str(error)))
    else:
        reason, rules = foreign_attention.examine(loaded)
        loaded = _with_capabilities(loaded, separate_rows_reason=reason)
    reason = loaded.capabilities.separate_rows_reason
    if reason and sampled:
        raise ValueError(
            f"base {base!r} has {reason}, which the embedded engine cannot sample: set "
            "engine: vllm, or name another base"
        )
    if reason:
        if problem := foreign_attention.untrainable(model):
            raise ValueError(
                f"base {base!r} has {reason}, and cannot be trained: {problem}; name another base"
            )
    elif fuses:
        use_fastest(model)
        fuse(model)
        loaded = _try_out(loaded, partial(fuse_heads, rules=rules))
        loaded = _try_out(loaded, trim, is_trimmed=True)
        loaded = _try_out(loaded, fuse_whole)
    else:
        loaded = _try_out(loaded, trim, is_trimmed=True)
    return _with_capabilities(loaded, scales_logits=foreign_attention.scales_logits(loaded))


def _with_capabilities(loaded: LoadedModel, **capabilities: Any) -> LoadedModel:
    return replace(loaded, capabilities=replace(loaded.capabilities, **capabilities))


def _read(base: str, path: str, dtype: torch.dtype) -> PreTrainedModel:
    """Read the base, with our attention where transformers can take it."""
    try:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation=layouts.NAME
            )
        except KeyError as error:  # it looks for its attention in a list of its own
            if error.args != (layouts.NAME,):
                raise
        else:
            if foreign_attention.can_switch(model):
                return model
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(f"base {base!r} cannot be loaded: {first_line(error)}") from error


@torch.no_grad()
def _try_out(
    loaded: LoadedModel,
    change: Callable[[PreTrainedModel], Callable[[], None] | None],
    **capabilities: bool,
) -> LoadedModel:
    """Change a model, and change it back if its logits are not what they were.

    `capabilities`: what it has if it stays changed.
    """
    model = loaded.model
    keep = torch.tensor([3, 9, 9, 10, 23], device=next(model.parameters()).device)
    before, back = probe(loaded, keep), change(model)
    if back is None:
        return loaded
    changed = _with_capabilities(loaded, **capabilities)
    with suppress(*UNLIKE):
        apart = (probe(changed, keep) - before).abs().max()
        if bool(apart <= close(model) * before.abs().max()):
            return changed
    back()
    return loaded


def with_adapters(
    loaded: LoadedModel, tokenizer: Tokenizer, adapters: dict[str, Adapter], *, seed: int
) -> dict[str, LanguageModel]:
    """Return one handle per adapter name, all over the same base weights."""
    from rolecall.models import lora

    # The prefix keeps PEFT from mistaking a policy's name for a part of its own `lora_`.
    internal = {name: f"policy-{name}" for name in adapters}
    adapted = lora.attach(
        loaded.model, {internal[name]: adapter for name, adapter in adapters.items()}, seed=seed
    )
    shared = replace(loaded, model=adapted)
    return {name: LanguageModel(shared, tokenizer, adapter=internal[name]) for name in adapters}


def read_end_ids(base: str, tokenizer: Tokenizer) -> list[int]:
    """Return `LanguageModel.end_ids` of a base that this process does not load."""
    try:
        ends = GenerationConfig.from_pretrained(locate(base)).eos_token_id or []
    except OSError:  # the base has none
        ends = []
    return stop_ids(tokenizer, ends)
