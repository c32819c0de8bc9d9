"""Small random models of the families in transformers, by what of them can be shown on a CPU.

Windows have 8 tokens, and rows are longer, so that a wrong window shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model
from rolecall_lab.tiny.tokenizer import fit
from tests.toy import CPU

SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
MIXED = ["sliding_attention", "full_attention"] * 2
SLIDING = {**GROUPED, "sliding_window": 8}
MIXED_SLIDING = {**SLIDING, "layer_types": MIXED}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MANY_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED = {**MANY_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
SPARSE = {**ROUTED, "first_k_dense_replace": 1}
LATENT = {
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "num_key_value_heads": 4,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
LINEAR = {
    **GROUPED, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip

# Prefix trees, the embedded engine.
FULL: dict[str, dict[str, Any]] = {
    "Apertus": GROUPED, "Arcee": GROUPED, "BioGpt": {}, "BitNet": GROUPED, "Cohere": GROUPED,
    "Ernie4_5": GROUPED, "Ernie4_5_Moe": {**GROUPED, "moe_num_experts": 4, "moe_k": 2,
    "moe_intermediate_size": 16}, "GPT2": {}, "GPTBigCode": {}, "GPTNeoX": {"rotary_pct": 0.25},
    "Gemma": GROUPED, "Glm": GROUPED, "Glm4": GROUPED, "Glm4Moe": {**GROUPED, **SPARSE},
    "Granite": {**GROUPED, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "GraniteMoe": {**GROUPED, **EXPERTS}, "Helium": GROUPED, "HunYuanDenseV1": GROUPED,
    "Jais2": GROUPED, "Llama": GROUPED, "MiniMaxM2": {**GROUPED, **EXPERTS},
    "Mixtral": {**GROUPED, **EXPERTS, "sliding_window": None}, "NanoChat": GROUPED,
    "Nemotron": {**GROUPED, "partial_rotary_factor": 0.5}, "OPT": {"ffn_dim": 48,
    "word_embed_proj_dim": 32}, "Olmo": GROUPED, "Olmo2": GROUPED, "Olmoe": {**GROUPED,
    "num_experts": 4, "num_experts_per_tok": 2}, "Persimmon": {},
    "Phi": {**GROUPED, "partial_rotary_factor": 0.5},
    "Phi3": {**GROUPED, "sliding_window": None, "partial_rotary_factor": 0.5},
    "Phimoe": {**GROUPED, **EXPERTS, "sliding_window": None}, "Qwen2": GROUPED,
    "Qwen2Moe": {**GROUPED, **MANY_EXPERTS, "shared_expert_intermediate_size": 16},
    "Qwen3": GROUPED, "Qwen3Moe": {**GROUPED, **MANY_EXPERTS}, "SeedOss": GROUPED,
    "SmolLM3": GROUPED, "StableLm": {**GROUPED, "partial_rotary_factor": 0.25},
    "Starcoder2": {**GROUPED, "sliding_window": None},
}  # fmt: skip
# The same, with windows, soft-capping or sinks.
RULED: dict[str, dict[str, Any]] = {
    "Afmoe": {**MIXED_SLIDING, **MANY_EXPERTS}, "Cohere2": MIXED_SLIDING, "Cwm": MIXED_SLIDING,
    "Dots1": {**MIXED_SLIDING, **SPARSE, "n_shared_experts": 1}, "Exaone4": MIXED_SLIDING,
    "Gemma2": {**MIXED_SLIDING, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4},
    "Gemma3Text": {**MIXED_SLIDING, "query_pre_attn_scalar": 4},
    "Gemma3nText": {**MIXED_SLIDING, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 300,
    "hidden_size_per_layer_input": 8, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4},
    "GptOss": {**MIXED_SLIDING, **EXPERTS}, "GraniteSWA": SLIDING,
    "Laguna": {**MIXED_SLIDING, **MANY_EXPERTS}, "Mellum": {**MIXED_SLIDING, **MANY_EXPERTS},
    "Ministral": MIXED_SLIDING, "Ministral3": SLIDING, "Mistral": SLIDING,
    "Mixtral": {**SLIDING, **EXPERTS}, "ModernBertDecoder": {"local_attention": 8,
    "sliding_window": 8, "layer_types": MIXED},
    "Olmo3": MIXED_SLIDING, "Phi3": SLIDING,
    "Qwen2": {**MIXED_SLIDING, "use_sliding_window": True},
    "Qwen3": {**MIXED_SLIDING, "use_sliding_window": True},
    "SmolLM3": {**MIXED_SLIDING, "use_sliding_window": True}, "Starcoder2": SLIDING,
    "VaultGemma": {**MIXED_SLIDING, "attn_logit_softcapping": 2.0},
}  # fmt: skip
# A row of its own for each turn, and another engine.
APART: dict[str, dict[str, Any]] = {
    "Bamba": {**GROUPED, **MAMBA, "attn_layer_indices": [1, 3]}, "Bloom": {"n_layer": 2},
    "CodeGen": {"rotary_dim": 4}, "DeepseekV2": {**SPARSE, **LATENT},
    "DeepseekV3": {**SPARSE, **LATENT}, "DiffLlama": GROUPED, "Doge": GROUPED,
    "Falcon": {"alibi": False},
    "FalconH1": {**GROUPED, **MAMBA, "mamba_d_ssm": 32, "mamba_n_heads": 4,
    "lm_head_multiplier": 0.5}, "GPTJ": {"rotary_dim": 4},
    "Gemma4Text": {**MIXED_SLIDING, "vocab_size_per_layer_input": 300, "global_head_dim": 16,
    "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
    "Jamba": {**GROUPED, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4,
    "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1},
    "Lfm2": {**GROUPED, "layer_types": ["conv", "full_attention"] * 2},
    "Llama4Text": {**GROUPED, **EXPERTS, "attention_chunk_size": 8, "intermediate_size_mlp": 48},
    "MiMoV2Flash": {**SLIDING, **ROUTED}, "MiniCPM3": LATENT,
    "MiniMax": {**GROUPED, **EXPERTS, "sliding_window": None, "block_size": 16},
    "Mpt": {"n_layers": 2, "n_heads": 4}, "OlmoHybrid": GROUPED,
    "Phimoe": {**SLIDING, **EXPERTS},
    "Qwen2Moe": {**MIXED_SLIDING, **MANY_EXPERTS, "shared_expert_intermediate_size": 16,
    "use_sliding_window": True},
    "Qwen3Next": {**LINEAR, **MANY_EXPERTS, "shared_expert_intermediate_size": 16},
    "Qwen3_5Text": LINEAR,
    "RecurrentGemma": {**GROUPED, "attention_window_size": 8, "lru_width": 32},
}  # fmt: skip
CASES = [
    (kind, name)
    for kind, families in (("full", FULL), ("ruled", RULED), ("apart", APART))
    for name in families
]
TOKENIZER = fit([], size=300, tags=())
# A token for each row of the heads: ids without one are left out of what is sampled.
TOKENIZER.add_tokens([f"<unused{number}>" for number in range(300 - len(TOKENIZER))])


def make(folder: Path, kind: str, name: str, **changes: Any) -> Path:
    """A folder with weights of a family, all of them moved from where they begin."""
    own = {"full": FULL, "ruled": RULED, "apart": APART}[kind][name]
    config_class = getattr(transformers, f"{name}Config")
    shallow = {"num_hidden_layers": 2} if kind == "full" else {}
    config = config_class(**{**SIZES, **shallow, **own, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def loaded(folder: Path, **options: Any) -> LanguageModel:
    options = {"dtype": torch.float32, "sampled": False, **options}
    return LanguageModel(load_model(str(folder), device=CPU, **options), TOKENIZER)
