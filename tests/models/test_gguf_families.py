"""A GGUF file of each family of models is read as the model that was written."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from rolecall.models.base_location import locate
from tests.gguf_files import small_tokenizer, write_gguf

pytestmark = pytest.mark.slow

# By llama.cpp's name: the config's class, and what it needs beside the sizes.
FAMILIES = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": None}),  # written as a llama
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 128}),
    "gemma2": (Gemma2Config, {"head_dim": 256, "sliding_window": 16}),
    "gemma3": (Gemma3TextConfig, {"head_dim": 32, "sliding_window": 16}),
    "phi3": (Phi3Config, {"sliding_window": 16}),
}
LENGTH = 300
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def random_model(family, tokenizer, **options):
    torch.manual_seed(0)
    kind, more = FAMILIES[family]
    config = kind(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=512,
        initializer_range=0.2, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None, pad_token_id=tokenizer.pad_token_id, **more, **options,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases, which begin as ones and zeros
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def same(file, model):
    ids = torch.randint(5, 250, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    read = AutoModelForCausalLM.from_pretrained(locate(str(file)), dtype=torch.float32).eval()
    expected = model(ids).logits
    return bool((read(ids).logits - expected).abs().max() <= 1e-3 * expected.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_read_as_the_model_that_was_written(family, tmp_path):
    tokenizer = small_tokenizer()
    model = random_model(family, tokenizer)
    architecture = "llama" if family == "mistral" else family
    file = write_gguf(tmp_path / "m.gguf", model, tokenizer, architecture=architecture)
    assert same(file, model)


def divisors(*, factor=32.0, low=1.0, high=4.0, length=8192, theta=10000.0, size=16):
    """Return what llama.cpp's converter writes: its frequencies are divided by these numbers."""
    numbers = []
    for i in range(0, size, 2):
        wave = 2 * math.pi * theta ** (i / size)
        smooth = min(1.0, max(0.0, (length / wave - low) / (high - low)))
        numbers.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(numbers, np.float32)


def test_the_rotations_of_llama_3_are_stretched(tmp_path):
    tokenizer = small_tokenizer()
    model = random_model("llama", tokenizer, rope_parameters=LLAMA3)
    file = write_gguf(
        tmp_path / "m.gguf", model, tokenizer, tensors={"rope_freqs.weight": divisors()}
    )
    assert same(file, model)
    assert not same(write_gguf(tmp_path / "plain.gguf", model, tokenizer), model)


@pytest.mark.parametrize(
    ("rotation", "keys"),
    [
        ({"rope_type": "linear", "factor": 8.0}, {"type": "linear", "factor": 8.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            {"type": "yarn", "factor": 4.0, "original_context_length": 128},
        ),
    ],
)
def test_stretching_that_the_keys_name_is_read(rotation, keys, tmp_path):
    tokenizer = small_tokenizer()
    model = random_model("llama", tokenizer, rope_parameters={"rope_theta": 10000.0, **rotation})
    keys = {f"rope.scaling.{key}": value for key, value in keys.items()}
    assert same(write_gguf(tmp_path / "m.gguf", model, tokenizer, keys=keys), model)
    assert not same(write_gguf(tmp_path / "plain.gguf", model, tokenizer), model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tensors": {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}}, "follow no rule"),
        ({"keys": {"rope.scaling.type": "longrope"}}, "'longrope' is not known"),
        ({"keys": {"rope.scaling.type": "linear"}}, "lacks 'factor'"),
        ({"tensors": {"other.weight": np.ones(3, np.float32)}}, "holds .* of which transformers"),
    ],
)
def test_what_would_be_another_model_is_refused(options, says, tmp_path):
    tokenizer = small_tokenizer()
    file = write_gguf(tmp_path / "m.gguf", random_model("llama", tokenizer), tokenizer, **options)
    with pytest.raises(ValueError, match=says) as error:
        locate(str(file))
    assert "fetch the model as safetensors" in str(error.value)
    assert "\n" not in str(error.value)


def test_stretching_of_a_model_with_several_rotations_is_refused(tmp_path):
    tokenizer = small_tokenizer()
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    model = random_model("gemma3", tokenizer)
    file = write_gguf(tmp_path / "m.gguf", model, tokenizer, architecture="gemma3", keys=keys)
    with pytest.raises(ValueError, match="several kinds"):
        locate(str(file))
