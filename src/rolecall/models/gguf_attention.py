"""Reads what a GGUF file says of attention and transformers leaves out: rotations and windows.

The tensor `rope_freqs` of Llama 3.1 and later holds what each frequency is divided by; other files
name a kind of stretching and its numbers. Without them a model is another one, most of all in long
contexts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DIVISORS = "rope_freqs.weight"
# What all models of the kind "llama3" have beside their factor.
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# Keys of the file that a kind needs, by their names in a config.
KEYS = {
    "linear": {"factor": "factor"},
    "yarn": {"factor": "factor", "original_max_position_embeddings": "original_context_length"},
}
SAME = 1e-4  # relative difference of two divisors
READ_BY_TRANSFORMERS = ("gpt-oss", "gemma4")
ELSEWHERE = "fetch the model as safetensors instead"


def restore_attention(config: PretrainedConfig, reader: Any, label: str) -> None:
    """Add what the file says of rotations and windows to the config of its model.

    Raises ValueError for rotations that cannot be written into a config.
    """
    architecture = read_field(reader, "general.architecture")
    if architecture in READ_BY_TRANSFORMERS:
        return
    window = read_field(reader, f"{architecture}.attention.sliding_window")
    if window is not None and hasattr(config, "sliding_window"):
        config.sliding_window = int(window) or None
    _restore_rotation(config, reader, architecture, label)


def _restore_rotation(config: PretrainedConfig, reader: Any, architecture: str, label: str) -> None:
    prefix = f"{architecture}.rope.scaling."
    divisors = next((t for t in reader.tensors if t.name == DIVISORS), None)
    kind = read_field(reader, f"{prefix}type") or "none"
    if divisors is None and kind == "none":
        return
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" not in parameters:  # one set for each type of layer
        raise ValueError(
            f"{label}: its rotations are stretched, which is not read for a model with several "
            f"kinds of them; {ELSEWHERE}"
        )
    if divisors is not None:
        config.rope_parameters = parameters | LLAMA3 | {"factor": float(divisors.data.max())}
        if not _divides(config, torch.from_numpy(divisors.data.copy())):
            raise ValueError(f"{label}: the divisors in {DIVISORS!r} follow no rule; {ELSEWHERE}")
        return
    if kind not in KEYS:
        raise ValueError(f"{label}: {_what(kind)} is not known; {ELSEWHERE}")
    numbers = {name: read_field(reader, prefix + key) for name, key in KEYS[kind].items()}
    if missing := [name for name, number in numbers.items() if number is None]:
        raise ValueError(f"{label}: {_what(kind)} lacks {missing[0]!r}; {ELSEWHERE}")
    config.rope_parameters = parameters | {"rope_type": kind} | numbers


def _what(kind: str) -> str:
    return f"rotations of the kind {kind!r}"


def _divides(config: PretrainedConfig, divisors: torch.Tensor) -> bool:
    """Return whether transformers divides the frequencies [D / 2] of the config by these."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    size = 2 * len(scaled)
    theta = config.rope_parameters["rope_theta"]
    plain = theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    return divisors.shape == scaled.shape and torch.allclose(
        plain / scaled.double(), divisors.double(), rtol=SAME
    )


def read_field(reader: Any, key: str) -> Any:
    """Return what the file says under a key, or None."""
    field = reader.get_field(key)
    return None if field is None else field.contents()
