"""Small real models of the families that users bring, made once per test session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rolecall.tiny.tokenizer import fit

FAMILIES = {
    "qwen2.5": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama3.2": (LlamaConfig, LlamaForCausalLM),
}
SHARED = Path(__file__).resolve().parents[2] / "shared"


def make_model(
    folder: Path, family: str, *, seed: int = 0, spread: float = 0.2, width: int = 32
) -> Path:
    """A random model of a family with a byte tokenizer; `spread` makes its softmax uneven."""
    torch.manual_seed(seed)
    tokenizer = fit([], size=300, tags=("<verify>", "</verify>"))
    config_class, model_class = FAMILIES[family]
    sizes = {"head_dim": 8} if family != "qwen2.5" else {}
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=2048,
        initializer_range=spread,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **sizes,
    )
    model = model_class(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="session", params=sorted(FAMILIES))
def any_model_folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("family"), request.param)


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("no ../shared beside the project: real data rows are not at hand")
    return SHARED
