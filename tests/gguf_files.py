"""Writes small GGUF files, as llama.cpp's converter writes those of Llama models."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch
from transformers import PreTrainedTokenizerFast
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from rolecall_lab.tiny.tokenizer import fit


def small_llama(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Return a random model of two layers and a byte-level tokenizer with a chat template."""
    tokenizer = fit(["one two three"], size=300, tags=())
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
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    architecture: str = "llama",
    kind: str = "",
    parts: int = 0,
    leave_out: str = "",
    half: bool = False,
) -> Path:
    """Write a model; the options make a file that cannot be read as one."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    if kind:
        writer.add_type(kind)
    if parts:
        writer.add_uint16("split.count", parts)
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(config.vocab_size)
    _write_tokenizer(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        short = _name(name)
        if short == leave_out or name == "lm_head.weight":
            continue
        if ".attn_q." in short:
            tensor = _permute(tensor, config.num_attention_heads)
        if ".attn_k." in short:
            tensor = _permute(tensor, config.num_key_value_heads)
        halved = half and tensor.ndim > 1
        writer.add_tensor(short, (tensor.half() if halved else tensor.float()).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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


def _permute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Order the rows of a head as llama.cpp rotates them."""
    rows, columns = weight.shape
    return (
        weight.reshape(heads, 2, rows // heads // 2, columns)
        .swapaxes(1, 2)
        .reshape(rows, columns)
        .contiguous()
    )


NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def _name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
