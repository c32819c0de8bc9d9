"""Writes the random models of the benchmarks as GGUF files, which llama.cpp reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


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
    """Add the sizes of a model of the family Llama or Qwen3."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write what was added and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight by its name and in its order of llama.cpp; a tied head is the embedding."""
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        weight, stem = parameter.detach(), name.removesuffix(".weight")
        kind = stem.rpartition(".")[2]
        if config.model_type == "llama" and kind in heads:  # pairs of a rotation are neighbours
            halves = weight.view(heads[kind], 2, -1, weight.shape[1])
            weight = halves.transpose(1, 2).reshape(weight.shape)
        if stem.startswith("model.layers."):
            number, _, module = stem.removeprefix("model.layers.").partition(".")
            yield f"blk.{number}.{NAMES[module]}.weight", weight.contiguous()
        else:
            yield f"{NAMES[stem]}.weight", weight
