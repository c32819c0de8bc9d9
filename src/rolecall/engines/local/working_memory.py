"""Predicts what sampling on a CPU holds beside weights and caches.

A forward pass of the embedded engine computes up to `PREFILL_TOKENS` of prompts together with
the newest token of each row in flight.

Legend: W = width of a state, H / K = query / key-value heads, D = head size, I = inner width, V =
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.row_lengths import longest_sampled
from rolecall.config.schema import Config
from rolecall.engines.local.cached_tokens import rows_at_once
from rolecall.engines.local.scheduler import PREFILL_TOKENS
from rolecall.models.language_model import get_key_value_heads
from rolecall.models.sizes import Size

LOGITS_HELD = 2  # those of the head, and a copy without the ids that the tokenizer lacks


@dataclass(frozen=True, slots=True)
class PassMemory:
    label: str
    num_bytes: int


def pass_memory(config: Config, name: str, engine: LocalEngineConfig, size: Size) -> PassMemory:
    """Return what the largest pass for a policy holds."""
    policy = config.policies[name]
    rows = rows_at_once(config, name, engine)
    tokens = largest_pass(rows, longest_sampled(config, size.max_length))
    alike = [p for p in config.policies.values() if p.adapter and p.base == policy.base]
    is_rounded = config.sampling_dtype(name) == "bfloat16"
    has_apart = len(alike) > 1 or (is_rounded and bool(alike))  # adapters beside the weights
    is_whole = policy.quantization == "none" and not has_apart
    held = held_by_pass(size, tokens=tokens, rows=rows, is_whole=is_whole, is_rounded=is_rounded)
    return PassMemory(f"one pass over {tokens:,} tokens", held)


def largest_pass(rows: int, longest: int) -> int:
    """Return the tokens of the largest pass over so many rows of at most `longest` tokens."""
    return min(PREFILL_TOKENS, rows * longest) + rows


def held_by_pass(
    size: Size, *, tokens: int, rows: int, is_whole: bool, is_rounded: bool = False
) -> int:
    """Return the bytes that a pass of a Llama-like model holds, whose states are in float32.

    `is_whole`: one call computes all layers and re-uses its memory from layer to layer. Otherwise
    what a layer has computed stays until the next layer has computed the same. `is_rounded`: copies
    in bfloat16 are what products take.
    """
    mixed, pairs, inner = _widths(size)
    if is_whole:  # states and their norm, queries and what is mixed, keys, values, the gated MLP
        each = 2.0 * size.width + 2 * mixed + pairs + 3 * inner
        if is_rounded:
            each += 0.5 * max(size.width, mixed, inner)
    else:
        each = 2.5 * size.width + 3 * mixed + 2 * pairs + 5.5 * inner
    return int(4 * (tokens * each + LOGITS_HELD * rows * size.vocabulary))


def _widths(size: Size) -> tuple[int, int, int]:
    """Return H * D, 2 * K * D and I; where a config does not say them, usual ones."""
    kv_heads, head = get_key_value_heads(size.config)
    inner = getattr(size.config, "intermediate_size", None)
    if not isinstance(inner, int):
        inner = 4 * size.width
    if not kv_heads:
        return size.width, 2 * size.width, inner
    return size.config.num_attention_heads * head, 2 * kv_heads * head, inner
