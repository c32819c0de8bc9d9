"""Computes a layer of a Llama-like model in two calls of numba's: float32, for sampling.

Each call costs microseconds, which is what a small product takes. So all that a layer does before
its attention is read, and all that it does after it, is one call each.

Legend: N = tokens of this pass, W = hidden size, I = inner size, H / K = query / key-value heads,
D = head size.
"""

from __future__ import annotations

from numba import njit

from rolecall.models.cpu.kernels import gate, norm, rope_and_cache
from rolecall.models.cpu.paged_attention import attend
from rolecall.models.cpu.tiled_products import multiply


@njit(cache=True)
def mix(
    x, before, eps, queries, keys, values, norms, turns, cache, slot, places, rule, sizes, scale,
    normed, query, key, value, mixed,
):  # fmt: skip
    """x [N, W] -> mixed [N, H, D] by attention; normed [N, W], query, key and value are room.

    Each of queries, keys and values: a weight that is laid out, and its bias; before: the norm's
    weight. The others are what `rope_and_cache` and `attend` take.
    """
    heads, kv_heads, size = sizes
    width = before.shape[0]
    norm(x, before, width, eps, normed)
    multiply(normed, *queries, width, heads * size, True, query)
    multiply(normed, *keys, width, kv_heads * size, True, key)
    multiply(normed, *values, width, kv_heads * size, True, value)
    rope_and_cache(query, key, value, *norms, eps, *turns, *cache, slot, heads, kv_heads, size)
    attend(query, *cache, *places, heads, kv_heads, size, scale, *rule, mixed)


@njit(cache=True)
def finish(
    x, mixed, outs, before, eps, gates, ups, downs, mixed_width, inner_width, normed, inner, other
):
    """Add to x [N, W] what the layer makes of mixed [N, H, D], then what its MLP makes of that;
    normed [N, W], inner and other [N, I] are room."""
    width = before.shape[0]
    multiply(mixed, *outs, mixed_width, width, False, x)
    norm(x, before, width, eps, normed)
    multiply(normed, *gates, width, inner_width, True, inner)
    multiply(normed, *ups, width, inner_width, True, other)
    gate(inner, other, inner_width, inner)
    multiply(inner, *downs, inner_width, width, False, x)
