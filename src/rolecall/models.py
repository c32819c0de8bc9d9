"""Names of models in, one handle per policy out: a transformers model, its tokenizer, an adapter.

The learner and the embedded engine hold the same handle, so that what is trained is what samples.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rolecall import attention, tiny
from rolecall.chat import Tokenizer
from rolecall.config import Adapter

transformers_logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)


class LanguageModel:
    """A policy's model: flat rows of ids in, logits out."""

    def __init__(self, model: Any, tokenizer: Tokenizer, *, adapter: str | None = None) -> None:
        self.model = model  # of transformers, or wrapped by PEFT: neither is typed
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.config = model.config
        self.device = next(model.parameters()).device
        self.num_layers: int = self.config.num_hidden_layers
        self.num_kv_heads: int = self.config.num_key_value_heads
        heads, hidden = self.config.num_attention_heads, self.config.hidden_size
        self.head_size: int = getattr(self.config, "head_dim", None) or hidden // heads
        self.max_length: int = self.config.max_position_embeddings

    @property
    def end_ids(self) -> list[int]:
        """Ids after which an assistant message is over."""
        generation = getattr(self.model, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None) or []
        ends = [ends] if isinstance(ends, int) else list(ends)
        return sorted({*ends, self.tokenizer.eos_token_id})

    def logits(
        self, tokens: Tensor, positions: Tensor, *, layout: attention.Layout, keep: Tensor
    ) -> Tensor:
        """tokens and positions [N] -> float32 logits [len(keep), V] after the kept indices."""
        if self.adapter is not None and self.model.active_adapter != self.adapter:
            self.model.set_adapter(self.adapter)
        out = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            layout=layout,
            logits_to_keep=keep,
        )
        return out.logits[0].float()

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """What this policy may train: all weights, or those of its adapter only."""
        for name, parameter in self.model.named_parameters():
            if self.adapter is None or f".{self.adapter}." in name:
                yield name, parameter

    def save(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` reads: a whole model, or a PEFT adapter."""
        if self.adapter is None:
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
        else:
            self.model.save_pretrained(folder, selected_adapters=[self.adapter])
            for file in sorted((folder / self.adapter).iterdir()):
                file.rename(folder / file.name)  # PEFT writes a named adapter one folder deeper
            (folder / self.adapter).rmdir()
            self.tokenizer.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Take over the weights that `save` wrote. Raises ValueError where they do not fit."""
        if self.adapter is None:
            saved = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
            return
        from peft import load_peft_weights, set_peft_model_state_dict

        weights = load_peft_weights(str(folder), device=str(self.device))
        missing = set_peft_model_state_dict(self.model, weights, adapter_name=self.adapter)
        if missing.unexpected_keys:
            raise ValueError(f"the adapter in {folder} has other weights: {missing}")


def load_tokenizer(base: str) -> Tokenizer:
    """The tokenizer of a base. Raises ValueError where it or its chat template is missing."""
    path = locate(base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"base {base!r} has no usable tokenizer: {first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ValueError(f"base {base!r} has no chat template, so its agents cannot be prompted")
    return tokenizer


def load_model(base: str, *, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The weights of a base, set up for flat rows. Raises ValueError where they are missing."""
    path = locate(base)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention.NAME
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"base {base!r} cannot be loaded: {first_line(error)}") from error
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    window = getattr(model.config, "sliding_window", None)
    if window and not hasattr(model.config, "layer_types"):  # then it holds for every layer
        kinds = {"sliding_attention"}
    if kinds != {"full_attention"}:
        raise ValueError(f"base {base!r} has layers of {sorted(kinds)}; only full attention works")
    return model.to(device).eval()


def with_adapters(
    model: PreTrainedModel, tokenizer: Tokenizer, adapters: dict[str, Adapter], *, seed: int
) -> dict[str, LanguageModel]:
    """One handle per adapter name, all over the same base weights."""
    from peft import LoraConfig, get_peft_model

    peft_model = None
    # The prefix keeps PEFT from mistaking a policy's name for a part of its own `lora_`.
    internal = {name: f"policy-{name}" for name in adapters}
    for name, adapter in sorted(adapters.items()):
        config = LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,
            target_modules=adapter.targets,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if peft_model is None:
                peft_model = get_peft_model(model, config, adapter_name=internal[name])
            else:
                peft_model.add_adapter(internal[name], config)
    assert peft_model is not None, "no adapters"
    peft_model.eval()
    return {name: LanguageModel(peft_model, tokenizer, adapter=internal[name]) for name in adapters}


def locate(base: str) -> str:
    """`tiny:NAME` is a model inside the package; then local folders; then a hub name."""
    if base.startswith("tiny:"):
        return str(tiny.folder(base.removeprefix("tiny:")))
    looks_local = base.startswith((".", "/", "~")) or base.count("/") != 1
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path)
    if looks_local or path.exists():
        raise ValueError(f"base {base!r}: there is no such model folder")
    return base


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
