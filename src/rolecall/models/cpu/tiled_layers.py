"""Computes all layers of a Llama-like model in one call of numba's, for sampling.

Each call costs microseconds, which is what a small product takes, and so does each array that is
handed over: the layers' arrays come as addresses. States are float32, also where weights are
bfloat16.

Many tokens are divided among the threads: each computes all that comes before attention for its
tokens, then all that follows. Of few tokens each thread computes some columns of each product, so
that it reads only its share of the weights.

Legend: N = tokens of this pass, L = layers, W = hidden size, I = inner size, H / K = query /
key-value heads, D = head size.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from rolecall.models.cpu.bfloat16_tiles import FLOAT32, count_pairs, round_to_pairs
from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.kernels import (
    gate,
    gate_row,
    norm,
    norm_row,
    rope_and_cache,
    rope_and_cache_row,
)
from rolecall.models.cpu.loop_memory import view
from rolecall.models.cpu.paged_attention import attend
from rolecall.models.cpu.parallel import count_threads, in_parallel, rows_at_once
from rolecall.models.cpu.tiled_products import multiply, multiply_rows, multiply_together

# As many tokens as make it worth that each thread reads all weights of a layer, and not a share of
# them (measured: with layers of 0.2, 1.6 and 3.5 million weights).
WEIGHTS_PER_TOKEN = 20_000
_U = np.uintp
_F = np.float32


@njit(inline="always")
def _operand(x, width, way, pairs):
    """Return x [N, width] as products take it, and how much of it a row is; pairs: room for it."""
    if way == FLOAT32:
        return x, _U(width)
    round_to_pairs(x, width, pairs)
    row = count_pairs(width)
    return pairs[: _U(len(x)) // _U(width) * row], row


@compile_inner
def _project_rows(
    item, most, x, before, eps, products, norms, cos_sin, cache, slot, sizes, normed,
):  # fmt: skip
    """Compute queries, keys and values of `most` tokens; the latter two go to the cache."""
    heads, kv_heads, size = _U(sizes[0]), _U(sizes[1]), _U(sizes[2])
    width, start = _U(before.shape[0]), item * most
    rows = min(most, _U(slot.shape[0]) - start)
    for r in range(start, start + rows):
        norm_row(x, r * width, before, width, eps, normed, r * width)
    for p in range(3):
        multiply_rows(start, rows, normed, products[p], width, FLOAT32, True)
    for r in range(start, start + rows):
        rope_and_cache_row(
            r, products[0][3], products[1][3], products[2][3], norms[0], norms[1], eps, cos_sin[0],
            cos_sin[1], cos_sin[2], cache[0], cache[1], slot, heads, kv_heads, size,
        )  # fmt: skip


@njit(inline="always")
def _mix(
    x, before, eps, queries, keys, values, norms, cos_sin, cache, slot, places, rule, sizes, scale,
    way, most, pairs, normed, query, key, value, mixed,
):  # fmt: skip
    """Compute mixed [N, H, D] of x [N, W] by attention.

    pairs, normed [N, W], query, key and value are room.

    Each of queries, keys and values: a weight that is laid out, and its bias; before: the norm's
    weight; most: tokens that a thread computes at once, 0 where threads share columns. The others
    are what `rope_and_cache` and `attend` take.
    """
    heads, kv_heads, size = sizes
    width = before.shape[0]
    products = (
        (*queries, _U(heads * size), query), (*keys, _U(kv_heads * size), key),
        (*values, _U(kv_heads * size), value),
    )  # fmt: skip
    if most > _U(0):
        arguments = (most, x, before, eps, products, norms, cos_sin, cache, slot, sizes, normed)
        in_parallel(_project_rows, (_U(len(slot)) + most - _U(1)) // most, arguments)
    else:
        norm(x, before, width, eps, normed)
        states, row = _operand(normed, width, way, pairs)
        multiply_together(states, products, 3, row, way, True)
        rope_and_cache(
            query, key, value, *norms, eps, *cos_sin, *cache, slot, heads, kv_heads, size
        )
    attend(query, *cache, *places, heads, kv_heads, size, scale, *rule, mixed)


@compile_inner
def _finish_rows(
    item, most, x, mixed, out, before, eps, gate_up, down, mixed_width, inner_width, normed, gated,
):  # fmt: skip
    """Do for `most` tokens what `_finish` does for all."""
    width, start = _U(before.shape[0]), item * most
    rows = min(most, _U(x.shape[0]) // width - start)
    multiply_rows(start, rows, mixed, out, mixed_width, FLOAT32, False)
    for r in range(start, start + rows):
        norm_row(x, r * width, before, width, eps, normed, r * width)
    for p in range(2):
        multiply_rows(start, rows, normed, gate_up[p], width, FLOAT32, True)
    for n in range(start * inner_width, (start + rows) * inner_width, inner_width):
        gate_row(gate_up[0][3], gate_up[1][3], n, inner_width, gated, n)
    multiply_rows(start, rows, gated, down, inner_width, FLOAT32, False)


@njit(inline="always")
def _finish(
    x, mixed, outs, before, eps, gates, ups, downs, mixed_width, inner_width, way, most, pairs,
    normed, inner, other, gated,
):  # fmt: skip
    """Add to x [N, W] what the layer makes of mixed [N, H, D], then what its MLP makes of that;
    pairs, normed [N, W], inner, other and gated [N, I] are room."""
    width = before.shape[0]
    up = (*ups, _U(inner_width), other)
    gate_up = ((*gates, _U(inner_width), inner), up, up)
    if most > _U(0):
        out, down = (*outs, _U(width), x), (*downs, _U(width), x)
        arguments = (
            most, x, mixed, out, before, eps, gate_up, down, _U(mixed_width), _U(inner_width),
            normed, gated,
        )  # fmt: skip
        in_parallel(_finish_rows, (_U(len(x) // width) + most - _U(1)) // most, arguments)
    else:
        states, row = _operand(mixed, mixed_width, way, pairs)
        multiply(states, *outs, row, width, way, False, x)
        norm(x, before, width, eps, normed)
        states, row = _operand(normed, width, way, pairs)
        multiply_together(states, gate_up, 2, row, way, True)
        gate(inner, other, inner_width, gated)
        states, row = _operand(gated, inner_width, way, pairs)
        multiply(states, *downs, row, width, way, False, x)


@njit
def _array(addresses, counts, place):
    return view(addresses[place], counts[place], np.float32)


@njit
def _linear(addresses, counts, place):
    """Return a weight that is laid out, and its bias."""
    return _array(addresses, counts, place), _array(addresses, counts, place + 1)


@compile_outer
def compute(
    x, width, inner_width, addresses, counts, way, cache_addresses, cache_count, eps, cos_sin, slot,
    places, windows, scales, sizes, keep,
):  # fmt: skip
    """Replace the front of x [N, W] by the states after all layers of the tokens `keep`.

    addresses and counts [L, 18]: of each layer the norm before its attention; of queries, keys and
    values a weight that is laid out and its bias; the norms of queries and keys; the same of what
    follows attention; the norm before the MLP; and weights and biases of gate, up and down.
    way: of multiplying with all of them, as `multiply_together` takes it. cache_addresses [L, 2]:
    its keys and values, `cache_count` numbers each. keep is in ascending order. The others are what
    `rope_and_cache` and `attend` take.
    """
    heads, kv_heads, size = sizes
    number, none = len(x) // width, np.zeros(0, np.float32)
    normed, mixed = np.empty(len(x), np.float32), np.empty(number * heads * size, np.float32)
    query = np.empty(number * heads * size, np.float32)
    key = np.empty(number * kv_heads * size, np.float32)
    value, inner = np.empty_like(key), np.empty(number * inner_width, np.float32)
    other, gated = np.empty_like(inner), np.empty_like(inner)
    widest = max(width, heads * size, inner_width)
    pairs = np.empty(0 if way == FLOAT32 else number * count_pairs(widest), np.float32)
    most = _U(0)
    if way == FLOAT32 and number * WEIGHTS_PER_TOKEN >= counts[0].sum():
        most = rows_at_once(number, count_threads())
    for layer in range(len(addresses)):
        a, n = addresses[layer], counts[layer]
        cache = (
            view(cache_addresses[layer, 0], cache_count, np.float32),
            view(cache_addresses[layer, 1], cache_count, np.float32),
        )
        _mix(
            x, _array(a, n, 0), eps, _linear(a, n, 1), _linear(a, n, 3), _linear(a, n, 5),
            (_array(a, n, 7), _array(a, n, 8)), cos_sin, cache, slot, places,
            (windows[layer], _F(0.0), none), sizes, scales[layer], way, most, pairs, normed,
            query, key, value, mixed,
        )  # fmt: skip
        if layer == len(addresses) - 1 and len(keep) < number:  # of the others nothing is read
            number = len(keep)
            for r in range(number):
                for c in range(width):
                    x[r * width + c] = x[keep[r] * width + c]
                for c in range(heads * size):
                    mixed[r * heads * size + c] = mixed[keep[r] * heads * size + c]
            x, mixed = x[: number * width], mixed[: number * heads * size]
        _finish(
            x, mixed, _linear(a, n, 9), _array(a, n, 11), eps, _linear(a, n, 12),
            _linear(a, n, 14), _linear(a, n, 16), heads * size, inner_width, way, most,
            pairs, normed[: len(x)], inner[: number * inner_width], other[: number * inner_width],
            gated[: number * inner_width],
        )  # fmt: skip
