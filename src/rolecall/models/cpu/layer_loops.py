"""Loops that train a layer of a Llama-like model, compiled by numba: float32.

The layer is computed in two parts, all that comes before its attention and all that comes after it,
a few tokens at a time: what they need stays in the processor's cache through all of the part, where
PyTorch's operations write all tokens to memory and read them again. Products are those of `tiles`.

Weights are laid out (`tiled_products`), for the backward pass their transposes. Gradients of
weights are added up in parts, one for each thread; each part is one row of numbers, in which they
stand in the order of the layer's weights.

Legend: N = tokens, W = hidden size, I = inner size, H / K = query / key-value heads, D = head size,
A = H * D; all widths are multiples of 8. A bias without numbers is none.
"""

from __future__ import annotations

import numpy as np

from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.elementary import EACH, NUMBER
from rolecall.models.cpu.kernels import (
    gate_row,
    gate_slopes,
    norm_rope,
    norm_rope_backward,
    norm_row,
    norm_row_backward,
)
from rolecall.models.cpu.loop_memory import give_back, taken
from rolecall.models.cpu.parallel import in_parallel, rows_at_once
from rolecall.models.cpu.tiles import BLOCK, add_block, add_product

_U = np.uintp
_F = np.float32


@compile_inner(forceinline=True)
def _fill(out, start, rows, bias, width):
    """Fill out[start ...] of so many rows with the bias, or zeros."""
    for r in range(rows):
        for c in range(width):
            out[start + r * width + c] = bias[c] if bias.shape[0] > 0 else _F(0.0)


@compile_inner
def _add_laid_out(out, out_row, x, x_row, weight, inputs, outputs, rows):
    """Add x [rows, I] times a weight that is laid out to out [rows, O].

    Out, x and weight are addresses; out_row and x_row are the distances between rows.
    """
    columns = _U(BLOCK)
    for first in range(_U(0), outputs, columns):
        at_out, block = out + first * NUMBER, weight + first * inputs * NUMBER
        if first + columns <= outputs:
            add_block(at_out, out_row, x, x_row, block, inputs, rows)
        else:
            add_product(
                at_out, out_row, x, x_row, _U(1), block, columns, inputs, rows, outputs - first
            )


@compile_inner(forceinline=True)
def _add_bias(part, place, grad, start, rows, width):
    """Add the sum of grad [rows, width] to the part."""
    for r in range(rows):
        for c in range(width):
            part[place + c] += grad[start + r * width + c]


@compile_inner
def _begin(
    block, most, x, before, eps, queries, keys, values, query_norm, key_norm, cos, sin, sizes,
    raw_query, raw_key, query, key, value,
):  # fmt: skip
    heads, kv_heads, size = _U(sizes[0]), _U(sizes[1]), _U(sizes[2])
    width, many, few = _U(before.shape[0]), heads * size, kv_heads * size
    number = _U(x.shape[0]) // width
    with_norm = query_norm.shape[0] > 0
    first_query, first_key = raw_query if with_norm else query, raw_key if with_norm else key
    at_query, at_key = _U(first_query.ctypes.data), _U(first_key.ctypes.data)
    at_value = _U(value.ctypes.data)
    weights = _U(queries[0].ctypes.data), _U(keys[0].ctypes.data), _U(values[0].ctypes.data)
    start = block * most
    rows = min(most, number - start)
    normed = taken(rows * width, np.float32)
    at_normed = _U(normed.ctypes.data)
    for r in range(rows):
        norm_row(x, (start + r) * width, before, width, eps, normed, r * width)
    _fill(first_query, start * many, rows, queries[1], many)
    _fill(first_key, start * few, rows, keys[1], few)
    _fill(value, start * few, rows, values[1], few)
    q, k = start * many * NUMBER, start * few * NUMBER
    _add_laid_out(at_query + q, many, at_normed, width, weights[0], width, many, rows)
    _add_laid_out(at_key + k, few, at_normed, width, weights[1], width, few, rows)
    _add_laid_out(at_value + k, few, at_normed, width, weights[2], width, few, rows)
    for row in range(start, start + rows):
        c = row * size
        for n in range(row * many, (row + _U(1)) * many, size):
            norm_rope(raw_query, n, query_norm, eps, cos, sin, c, size, query, n)
        for n in range(row * few, (row + _U(1)) * few, size):
            norm_rope(raw_key, n, key_norm, eps, cos, sin, c, size, key, n)
    give_back(normed)


@compile_outer
def begin(
    threads, x, before, eps, queries, keys, values, query_norm, key_norm, cos, sin, sizes,
    raw_query, raw_key, query, key, value,
):  # fmt: skip
    """Compute query [N, H, D], key and value [N, K, D] of x [N, W].

    Query and key are normalised and rotated.

    queries, keys, values: a weight that is laid out, and its bias. raw_query, raw_key: room for
    what is normalised; empty where there are no norms. cos and sin [N, D].
    """
    number = _U(len(x) // len(before))
    most = rows_at_once(number, threads)
    arguments = (
        most, x, before, eps, queries, keys, values, query_norm, key_norm, cos, sin, sizes,
        raw_query, raw_key, query, key, value,
    )  # fmt: skip
    in_parallel(_begin, (number + most - _U(1)) // most, arguments)


@compile_inner
def _begin_backward(
    p, query_grad, key_grad, value_grad, x, before, eps, queries, keys, values, biased, query_norm,
    key_norm, cos, sin, sizes, raw_query, raw_key, dx, parts, length,
):  # fmt: skip
    heads, kv_heads, size = _U(sizes[0]), _U(sizes[1]), _U(sizes[2])
    width, many, few = _U(before.shape[0]), heads * size, kv_heads * size
    number, count = _U(x.shape[0]) // width, _U(parts.shape[0]) // _U(length)
    most = rows_at_once(number, count)
    blocks = (number + most - _U(1)) // most
    each = (blocks + count - _U(1)) // count
    weights = _U(queries.ctypes.data), _U(keys.ctypes.data), _U(values.ctypes.data)
    at_value_grad, at_parts = _U(value_grad.ctypes.data), _U(parts.ctypes.data)
    at_before = p * _U(length)
    at_queries = at_before + width
    at_keys = at_queries + many * width
    at_values = at_keys + few * width
    at_biases = at_values + few * width
    at_norms = at_biases + (many + few + few if biased else _U(0))
    # Normed states, their gradients, those of queries and keys.
    memory = taken(most * (_U(2) * width + many + few), np.float32)
    back = taken(size, np.float32)
    pulls = most * width
    d_query, d_key = _U(2) * most * width, most * (_U(2) * width + many)
    at_normed = _U(memory.ctypes.data)
    at_pulls, at_d_query = at_normed + pulls * NUMBER, at_normed + d_query * NUMBER
    at_d_key = at_normed + d_key * NUMBER
    for block in range(p * each, min(blocks, (p + _U(1)) * each)):
        start = block * most
        rows = min(most, number - start)
        for r in range(rows):
            row = start + r
            norm_row(x, row * width, before, width, eps, memory, r * width)
            norm_rope_backward(
                query_grad, row * many, raw_query, query_norm, eps, cos, sin, row * size,
                heads, size, memory, d_query + r * many, parts, at_norms, back,
            )  # fmt: skip
            norm_rope_backward(
                key_grad, row * few, raw_key, key_norm, eps, cos, sin, row * size, kv_heads,
                size, memory, d_key + r * few, parts, at_norms + _U(query_norm.shape[0]), back,
            )  # fmt: skip
        for i in range(pulls, pulls + rows * width):
            memory[i] = _F(0.0)
        at_d_value = at_value_grad + start * few * NUMBER
        for grad, outputs, weight, offset in (
            (at_d_query, many, weights[0], at_queries),
            (at_d_key, few, weights[1], at_keys),
            (at_d_value, few, weights[2], at_values),
        ):
            _add_laid_out(at_pulls, width, grad, outputs, weight, outputs, width, rows)
            add_product(
                at_parts + offset * NUMBER, width, grad, _U(1), outputs, at_normed, width, rows,
                outputs, width,
            )  # fmt: skip
        if biased:
            _add_bias(parts, at_biases, memory, d_query, rows, many)
            _add_bias(parts, at_biases + many, memory, d_key, rows, few)
            _add_bias(parts, at_biases + many + few, value_grad, start * few, rows, few)
        for r in range(rows):
            n = (start + r) * width
            norm_row_backward(
                memory, pulls + r * width, x, n, before, width, eps, dx, n, parts, at_before
            )
    give_back(memory)
    give_back(back)


@compile_outer
def begin_backward(
    query_grad, key_grad, value_grad, x, before, eps, queries, keys, values, biased, query_norm,
    key_norm, cos, sin, sizes, raw_query, raw_key, dx, parts, length,
):  # fmt: skip
    """Gradients of `begin`: dx [N, W], and parts [..., length] of those of before, queries, keys,
    values, their three biases if any is `biased`, and the two norms."""
    arguments = (
        query_grad, key_grad, value_grad, x, before, eps, queries, keys, values, biased, query_norm,
        key_norm, cos, sin, sizes, raw_query, raw_key, dx, parts, length,
    )  # fmt: skip
    in_parallel(_begin_backward, len(parts) // length, arguments)


@compile_inner(fastmath=EACH, forceinline=True)
def _gated_back(memory, o, dx, dy, x, y, n, width):
    """Replace the gradient memory[o ...] by silu(x[n ...]) * y[n ...].

    The gradients by x and y are written to memory[dx ...] and memory[dy ...].
    """
    for d in range(width):
        a, b = x[n + d], y[n + d]
        memory[dx + d], memory[dy + d], share = gate_slopes(memory[o + d], a, b)
        memory[o + d] = a * share * b


@compile_inner
def _finish(
    block, most, x, mixed, outs, before, eps, gates, ups, downs, mixed_width, inner_width, middle,
    gate, up, out,
):  # fmt: skip
    width, many, inner = _U(before.shape[0]), _U(mixed_width), _U(inner_width)
    number = _U(x.shape[0]) // width
    at_mixed, at_middle, at_out = _U(mixed.ctypes.data), _U(middle.ctypes.data), _U(out.ctypes.data)
    at_gate, at_up = _U(gate.ctypes.data), _U(up.ctypes.data)
    weights = (
        _U(outs[0].ctypes.data), _U(gates[0].ctypes.data), _U(ups[0].ctypes.data),
        _U(downs[0].ctypes.data),
    )  # fmt: skip
    start = block * most
    rows = min(most, number - start)
    memory = taken(rows * (width + inner), np.float32)  # normed states, then gated
    normed, gated = _U(memory.ctypes.data), _U(memory.ctypes.data) + rows * width * NUMBER
    s, i = start * width, start * inner
    for r in range(rows):
        for c in range(width):
            more = outs[1][c] if outs[1].shape[0] > 0 else _F(0.0)
            middle[s + r * width + c] = x[s + r * width + c] + more
    _add_laid_out(
        at_middle + s * NUMBER, width, at_mixed + start * many * NUMBER, many, weights[0], many,
        width, rows,
    )  # fmt: skip
    for r in range(rows):
        norm_row(middle, s + r * width, before, width, eps, memory, r * width)
    _fill(gate, i, rows, gates[1], inner)
    _fill(up, i, rows, ups[1], inner)
    _add_laid_out(at_gate + i * NUMBER, inner, normed, width, weights[1], width, inner, rows)
    _add_laid_out(at_up + i * NUMBER, inner, normed, width, weights[2], width, inner, rows)
    for r in range(rows):
        o = rows * width + r * inner
        gate_row(gate, up, i + r * inner, inner, memory, o)
    for r in range(rows):
        for c in range(width):
            more = downs[1][c] if downs[1].shape[0] > 0 else _F(0.0)
            out[s + r * width + c] = middle[s + r * width + c] + more
    _add_laid_out(at_out + s * NUMBER, width, gated, inner, weights[3], inner, width, rows)
    give_back(memory)


@compile_outer
def finish(
    threads, x, mixed, outs, before, eps, gates, ups, downs, mixed_width, inner_width, middle, gate,
    up, out,
):  # fmt: skip
    """Compute the states after the layer: x [N, W] and mixed [N, A] by attention -> out [N, W].

    outs, gates, ups, downs: a weight that is laid out, and its bias. middle [N, W] are the states
    between attention and MLP; gate and up [N, I] what those projections make.
    """
    number = _U(len(x) // len(before))
    most = rows_at_once(number, threads)
    arguments = (
        most, x, mixed, outs, before, eps, gates, ups, downs, mixed_width, inner_width, middle,
        gate, up, out,
    )  # fmt: skip
    in_parallel(_finish, (number + most - _U(1)) // most, arguments)


@compile_inner
def _finish_backward(
    p, grad, mixed, middle, gate, up, outs, before, eps, gates, ups, downs, biased, mixed_width,
    inner_width, dx, d_mixed, parts, length,
):  # fmt: skip
    width, many, inner = _U(before.shape[0]), _U(mixed_width), _U(inner_width)
    number, count = _U(grad.shape[0]) // width, _U(parts.shape[0]) // _U(length)
    most = rows_at_once(number, count)
    room = inner + _U(BLOCK)  # of a row: rows that begin at the same place of pages are slow
    blocks = (number + most - _U(1)) // most
    each = (blocks + count - _U(1)) // count
    at_grad, at_mixed, at_parts = (
        _U(grad.ctypes.data), _U(mixed.ctypes.data), _U(parts.ctypes.data),
    )  # fmt: skip
    at_dx, at_d_mixed = _U(dx.ctypes.data), _U(d_mixed.ctypes.data)
    at_outs, at_gates, at_ups, at_downs = (
        _U(outs.ctypes.data), _U(gates.ctypes.data), _U(ups.ctypes.data), _U(downs.ctypes.data),
    )  # fmt: skip
    d_before = p * _U(length)
    d_outs = d_before + width
    d_gates = d_outs + width * many
    d_ups = d_gates + inner * width
    d_downs = d_ups + inner * width
    d_biases = d_downs + width * inner
    # Gated states, gradients of gate and up, normed states, their gradients.
    memory = taken(most * (_U(3) * room + _U(2) * width), np.float32)
    d_gate, d_up, normed = most * room, _U(2) * most * room, _U(3) * most * room
    pulls = normed + most * width
    at_gated = _U(memory.ctypes.data)
    at_d_gate, at_d_up = at_gated + d_gate * NUMBER, at_gated + d_up * NUMBER
    at_normed, at_pulls = at_gated + normed * NUMBER, at_gated + pulls * NUMBER
    for block in range(p * each, min(blocks, (p + _U(1)) * each)):
        start = block * most
        rows = min(most, number - start)
        s, i, m = start * width, start * inner, start * many
        at_rows = at_grad + s * NUMBER
        for n in range(rows * room):
            memory[n] = _F(0.0)
        _add_laid_out(at_gated, room, at_rows, width, at_downs, width, inner, rows)
        for r in range(rows):
            o = r * room
            _gated_back(memory, o, d_gate + o, d_up + o, gate, up, i + r * inner, inner)
            norm_row(middle, s + r * width, before, width, eps, memory, normed + r * width)
        add_product(
            at_parts + d_downs * NUMBER, inner, at_rows, _U(1), width, at_gated, room, rows,
            width, inner,
        )  # fmt: skip
        for n in range(pulls, pulls + rows * width):
            memory[n] = _F(0.0)
        for pull, weight, offset in ((at_d_gate, at_gates, d_gates), (at_d_up, at_ups, d_ups)):
            _add_laid_out(at_pulls, width, pull, room, weight, inner, width, rows)
            add_product(
                at_parts + offset * NUMBER, width, pull, _U(1), room, at_normed, width, rows,
                inner, width,
            )  # fmt: skip
        for r in range(rows):
            o = s + r * width
            norm_row_backward(
                memory, pulls + r * width, middle, o, before, width, eps, dx, o, parts, d_before
            )
            for c in range(o, o + width):
                dx[c] += grad[c]
        for n in range(m, m + rows * many):
            d_mixed[n] = _F(0.0)
        _add_laid_out(
            at_d_mixed + m * NUMBER, many, at_dx + s * NUMBER, width, at_outs, width, many, rows
        )
        add_product(
            at_parts + d_outs * NUMBER, many, at_dx + s * NUMBER, _U(1), width,
            at_mixed + m * NUMBER, many, rows, width, many,
        )  # fmt: skip
        if biased:
            _add_bias(parts, d_biases, dx, s, rows, width)
            d_inner = d_biases + width
            for r in range(rows):
                _add_bias(parts, d_inner, memory, d_gate + r * room, _U(1), inner)
                _add_bias(parts, d_inner + inner, memory, d_up + r * room, _U(1), inner)
            _add_bias(parts, d_inner + _U(2) * inner, grad, s, rows, width)
    give_back(memory)


@compile_outer
def finish_backward(
    grad, mixed, middle, gate, up, outs, before, eps, gates, ups, downs, biased, mixed_width,
    inner_width, dx, d_mixed, parts, length,
):  # fmt: skip
    """Gradients of `finish`: dx [N, W], d_mixed [N, A], and parts [..., length] of those of before,
    outs, gates, ups, downs, and their four biases if any is `biased`."""
    arguments = (
        grad, mixed, middle, gate, up, outs, before, eps, gates, ups, downs, biased, mixed_width,
        inner_width, dx, d_mixed, parts, length,
    )  # fmt: skip
    in_parallel(_finish_backward, len(parts) // length, arguments)
