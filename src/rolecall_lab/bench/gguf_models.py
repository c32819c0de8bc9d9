"""Writes the random models of the benchmarks as GGUF files, which llama.cpp reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel


def write_gguf(folder: Path, dtype: str) -> Path:
    """Write a model without a vocabulary beside its folder, where it is not there yet."""
    file = folder / f"{dtype}.gguf"
    if file.is_file():
        return file
    config = AutoConfig.from_pretrained(folder)
    writer = gguf.GGUFWriter(file, config.model_type)
    add_shape(writer, config)
    writer.add_tokenizer_model("none")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, weight in named_weights(model):
        if dtype == "bfloat16" and weight.dim() == 2:
            rounded = weight.to(torch.bfloat16).view(torch.uint8).numpy()
            writer.add_tensor(name, rounded, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, weight.numpy())
    finish(writer)
    return file


def add_shape(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """Add the sizes of a model."""
    rotation = config.rope_parameters  # or one for each type of layer
    rotation = rotation.get("full_attention", rotation)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(rotation["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what was added and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named_weights(model: PreTrainedModel, architecture: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield each weight by its name and in its order of llama.cpp; a tied head is the embedding.

    architecture: what llama.cpp calls the family, if that is not the config's `model_type`.
    """
    config = model.config
    architecture = architecture or config.model_type
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        weight, (stem, _, kind) = parameter.detach(), name.rpartition(".")
        module = stem.rpartition(".")[2]
        if architecture == "llama" and module in heads:  # pairs of a rotation are neighbours
            halves = weight.view(heads[module], 2, -1, weight.shape[1])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        yield f"{names.get_name(stem)}.{kind}", weight.contiguous()
