"""Loads models and tokenizers that a config names, with errors that name its keys."""

from __future__ import annotations

import torch

from rolecall.agents.chat_template import Tokenizer
from rolecall.core.errors import ConfigError
from rolecall.models.devices import device_named
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.models.quantized import Quantization


def load_configured(
    base: str,
    device: str,
    dtype: str,
    *,
    key: str,
    sampled: bool = False,
    tokenizer: Tokenizer | None = None,
    quantization: Quantization = "none",
) -> LanguageModel:
    """Load a model as a config names it. Raises ConfigError that names the config key.

    `sampled`: the embedded engine samples it; `tokenizer`: by default that of the base.
    """
    try:
        where, what = device_named(device), getattr(torch, dtype)
        model = load_model(
            base, device=where, dtype=what, sampled=sampled, quantization=quantization
        )
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    return LanguageModel(model, tokenizer or read_tokenizer(base, key=key))


def read_tokenizer(base: str, *, key: str, chat_template: str | None = None) -> Tokenizer:
    """Load the tokenizer of a base. Raises ConfigError that names the config key."""
    try:
        return load_tokenizer(base, chat_template=chat_template)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
