"""Writes small GGUF files, as llama.cpp's converter writes those of Llama models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from rolecall_lab.bench.gguf_models import add_shape, finish, named_weights
from rolecall_lab.tiny.tokenizer import fit

ONE_MORE = ("gemma2", "gemma3")  # llama.cpp adds 1 to their norms' weights


def small_tokenizer() -> PreTrainedTokenizerFast:
    return fit(["one two three"], size=300, tags=())


def small_llama(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return a random model of two layers and a byte-level tokenizer with a chat template."""
    tokenizer = small_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=512,
        rope_theta=10000.0, initializer_range=0.2, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None, rms_norm_eps=1e-5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer


def write_gguf(
    file: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    *,
    architecture: str = "llama",
    kind: str = "",
    parts: int = 0,
    leave_out: str = "",
    half: bool = False,
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
    keys: Mapping[str, str | float] = MappingProxyType({}),
) -> Path:
    """Write a model.

    kind, parts, leave_out: what makes a file that cannot be read as a model; tensors and keys: what
    the file holds besides.
    """
    writer = gguf.GGUFWriter(file, architecture)
    if kind:
        writer.add_type(kind)
    if parts:
        writer.add_uint16("split.count", parts)
    writer.add_name("small")
    add_shape(writer, model.config)
    _write_tokenizer(writer, tokenizer)
    for key, value in keys.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](f"{architecture}.{key}", value)
    for name, numbers in tensors.items():
        writer.add_tensor(name, numbers)
    family = architecture if architecture in gguf.MODEL_ARCH_NAMES.values() else "llama"
    for name, weight in named_weights(model, family):
        if family in ONE_MORE and name.endswith("norm.weight"):
            weight = weight + 1
        if name != leave_out:
            halved = half and weight.ndim > 1
            writer.add_tensor(name, (weight.half() if halved else weight.float()).numpy())
    finish(writer)
    return file


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    added = {one["id"] for one in state["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # digits stand alone
    writer.add_token_list([by_id[index] for index in range(len(by_id))])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if i in added else gguf.TokenType.NORMAL for i in range(len(by_id))]
    )
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)
