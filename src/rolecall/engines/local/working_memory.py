"""Predicts what sampling on a CPU holds beside weights and caches.

A forward pass of the embedded engine computes up to `PREFILL_IDS` tokens of prompts together with
the newest token of each row in flight. What updates have freed stays with the process, as the top
of its heap is seldom free (`runtime/memory.py`), and passes are computed in that.

Legend: W = width of a state, H / K = query / key-value heads, D = head size, I = inner width, V =
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.schema import Config
from rolecall.engines.local import cached_tokens
from rolecall.engines.local.scheduler import PREFILL_IDS
from rolecall.models.language_model import heads_of
from rolecall.models.memory_needs import Need
from rolecall.models.sizes import Size
from rolecall.placement.devices import engine_devices, is_gpu

LOGITS_HELD = 2  # those of the head, and a copy without the ids that the tokenizer lacks
UPDATE = "update of "  # how phases of updates begin


def working_memory(
    config: Config, size_of: Callable[[str], Size | None], needs: list[Need], *, auto: str
) -> list[Need]:
    """Return of each CPU what passes are computed in: new memory, or what updates freed.

    `size_of`: of a base; `needs`: all others.
    """
    largest: dict[str, Need] = {}
    for name in config.policies:
        for need in _pass(config, name, size_of, auto=auto):
            before = largest.get(need.device)
            if before is None or _bytes(need) > _bytes(before):
                largest[need.device] = need
    for device, need in largest.items():
        kept = _freed(config, needs, device)
        if kept > _bytes(need):
            label = "freed by updates and kept by the process"
            largest[device] = Need("learners", label, kept, device, "sampling")
    return list(largest.values())


def _pass(
    config: Config, name: str, size_of: Callable[[str], Size | None], *, auto: str
) -> Iterator[Need]:
    policy, engine = config.policies[name], config.engine_of(name)
    size = size_of(policy.base)
    if not isinstance(engine, LocalEngineConfig) or size is None or config.is_replicated(name):
        return
    rows = cached_tokens.rows_at_once(config, name, engine)
    tokens = largest_pass(rows, cached_tokens.longest_sampled(config, size.max_length))
    alike = [p for p in config.policies.values() if p.adapter and p.base == policy.base]
    is_whole = (
        config.sampling_dtype(name) == "float32"
        and policy.quantization == "none"
        and len(alike) < 2
    )
    held = held_by_pass(size, tokens=tokens, rows=rows, is_whole=is_whole)
    owner, label = f"engine of {policy.base if policy.adapter else name}", f"{tokens:,} tokens"
    for [device] in engine_devices(config, name, auto=auto):
        if not is_gpu(device):
            yield Need(owner, f"one pass over {label}", held, device, "sampling")


def largest_pass(rows: int, longest: int) -> int:
    """Return the tokens of the largest pass over so many rows of at most `longest` tokens."""
    return min(PREFILL_IDS, rows * longest) + rows


def held_by_pass(size: Size, *, tokens: int, rows: int, is_whole: bool) -> int:
    """Return the bytes that a pass of a Llama-like model holds, whose states are in float32.

    `is_whole`: one call computes all layers and re-uses its memory from layer to layer. Otherwise
    what a layer has computed stays until the next layer has computed the same, and products in
    bfloat16 take copies.
    """
    mixed, pairs, inner = _widths(size)
    if is_whole:  # states and their norm, queries and what is mixed, keys, values, the gated MLP
        each = 2.0 * size.width + 2 * mixed + pairs + 3 * inner
    else:
        each = 2.5 * size.width + 3 * mixed + 2 * pairs + 5.5 * inner
    return int(4 * (tokens * each + LOGITS_HELD * rows * size.vocabulary))


def _widths(size: Size) -> tuple[int, int, int]:
    """Return H * D, 2 * K * D and I; where a config does not say them, usual ones."""
    kv_heads, head = heads_of(size.config)
    inner = getattr(size.config, "intermediate_size", None)
    if not isinstance(inner, int):
        inner = 4 * size.width
    if not kv_heads:
        return size.width, 2 * size.width, inner
    return size.config.num_attention_heads * head, 2 * kv_heads * head, inner


def _freed(config: Config, needs: list[Need], device: str) -> int:
    """Return the most that one update of this process frees there when it ends."""
    elsewhere = {UPDATE + name for name in config.trained if config.is_ranked(name)}
    freed: dict[str, int] = {}
    for need in needs:
        if need.device == device and need.phase.startswith(UPDATE) and need.phase not in elsewhere:
            freed[need.phase] = freed.get(need.phase, 0) + _bytes(need)
    return max(freed.values(), default=0)


def _bytes(need: Need) -> int:
    return need.num_bytes or 0
