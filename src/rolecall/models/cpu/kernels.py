"""Inner loops of sampling and training on a CPU, compiled by numba: float32, tokens in parallel.

A page holds the keys [K, D, PAGE] and values [K, PAGE, D] of 16 positions of one row. All arrays
are flat and all indices unsigned: so LLVM makes vector code of the loops (three times as fast as
with views, measured).

Legend: N = tokens of this pass, H / K = query / key-value heads, D = head size, a multiple of 8.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import config, set_num_threads
from torch import Tensor

from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.elementary import (
    DIVIDES,
    EACH,
    LEAST,
    MATH,
    NUMBER,
    exp,
    exponentials,
    largest,
)
from rolecall.models.cpu.loop_memory import give_back, taken
from rolecall.models.cpu.parallel import in_parallel
from rolecall.models.cpu.short_rows import (
    normalize_row,
    normalize_row_backward,
    rotate_row,
    rotate_row_backward,
)

PAGE = 16  # positions
PARTS = 32  # that gradients of weights are summed in, whatever the threads
_U = np.uintp
_F = np.float32


def use_threads() -> None:
    """Use as many threads as PyTorch; each thread that calls the loops must call this itself."""
    threads = torch.get_num_threads()
    set_num_threads(min(threads, config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != threads:  # numba's pool has begun, and has asked for all cores
        torch.set_num_threads(threads)


def runs_on_numba(x: Tensor) -> bool:
    """Return whether the loops can read the tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def flat(x: Tensor) -> np.ndarray:
    """Return the same memory as one row of numbers."""
    return x.detach().view(-1).numpy()


@compile_inner(forceinline=True)
def _write(key, n, value, keys, values, place, k, kv_heads, size):
    """Write a head's key key[n : n + size] and value value[...] to place page * PAGE + offset."""
    page = _U(PAGE)
    start, offset = ((place // page) * kv_heads + k) * size * page, place % page
    for d in range(size):
        keys[start + d * page + offset] = key[n + d]
        values[start + offset * size + d] = value[n + d]


@compile_inner
def _write_token(i, key, value, keys, values, slot, kv_heads, size):
    for k in range(kv_heads):
        n = (i * kv_heads + k) * size
        _write(key, n, value, keys, values, _U(slot[i]), k, kv_heads, size)


@compile_outer
def write(key, value, keys, values, slot, kv_heads, size):
    """Write key and value [N, K, D] to the places `slot` [N]."""
    arguments = (key, value, keys, values, slot, _U(kv_heads), _U(size))
    in_parallel(_write_token, slot.shape[0], arguments)


@compile_inner(forceinline=True)
def _at(x, n):
    """Return the address of x[n]."""
    return _U(x.ctypes.data) + n * NUMBER


@compile_inner(forceinline=True)
def norm_row(x, n, weight, width, eps, out, o):
    """Root mean square norm of x[n : n + width], over the numbers `weight`."""
    normalize_row(_at(x, n), _at(weight, _U(0)), _at(out, o), width, eps)


@compile_inner
def _norm(i, x, weight, width, eps, out):
    norm_row(x, i * width, weight, width, eps, out, i * width)


@compile_outer
def norm(x, weight, width, eps, out):
    """Normalise x [N, width] -> out [N, width]."""
    in_parallel(_norm, x.shape[0] // width, (x, weight, _U(width), eps, out))


@compile_inner(forceinline=True)
def norm_rope(x, n, weight, eps, cos, sin, c, size, out, o):
    """Normalise x[n : n + size] by `weight` and rotate it -> out[o : o + size].

    With an empty `weight` there is no norm, and the numbers must be in `out` already.
    """
    if weight.shape[0] > 0:
        norm_row(x, n, weight, size, eps, out, o)
    rotate_row(_at(out, o), _at(cos, c), _at(sin, c), size // _U(2))


@compile_inner
def rope_and_cache_row(
    i, query, key, value, query_weight, key_weight, eps, cos, sin, position, keys, values, slot,
    heads, kv_heads, size,
):  # fmt: skip
    """Do for token i what `rope_and_cache` does for all."""
    c = _U(position[i]) * size
    for h in range(heads):
        n = (i * heads + h) * size
        norm_rope(query, n, query_weight, eps, cos, sin, c, size, query, n)
    for k in range(kv_heads):
        n = (i * kv_heads + k) * size
        norm_rope(key, n, key_weight, eps, cos, sin, c, size, key, n)
        _write(key, n, value, keys, values, _U(slot[i]), k, kv_heads, size)


@compile_outer
def rope_and_cache(
    query, key, value, query_weight, key_weight, eps, cos, sin, position, keys, values, slot,
    heads, kv_heads, size,
):  # fmt: skip
    """Normalise and rotate query [N, H, D] and key [N, K, D] in place, then cache key and value.

    Empty weights: no norm. cos and sin [positions, D].
    """
    arguments = (
        query, key, value, query_weight, key_weight, eps, cos, sin, position, keys, values, slot,
        _U(heads), _U(kv_heads), _U(size),
    )  # fmt: skip
    in_parallel(rope_and_cache_row, slot.shape[0], arguments)


@compile_inner(fastmath=MATH)
def _draw(i, logits, temperature, uniform, size, ids, logprobs):
    start, block = i * size, _U(256)
    weights = taken(size, np.float32)
    most = largest(_U(logits.ctypes.data) + start * NUMBER, size)
    factor = _F(1.0) / temperature[i]
    for v in range(size):
        weights[v] = (logits[start + v] - most) * factor
    exponentials(weights, _U(0), size, _F(0.0))
    sums = taken((size + block - _U(1)) // block, np.float64)
    total = 0.0
    for b in range(_U(0), _U(sums.shape[0])):
        inside = 0.0
        for v in range(b * block, min(size, (b + _U(1)) * block)):
            if (logits[start + v] - most) * factor <= LEAST:
                weights[v] = _F(0.0)
            inside += np.float64(weights[v])
        sums[b] = inside
        total += inside
    level, b = uniform[i] * total, _U(0)
    while b + _U(1) < _U(sums.shape[0]) and sums[b] <= level:
        level -= sums[b]
        b += _U(1)
    best = b * block
    for v in range(b * block, min(size, (b + _U(1)) * block)):
        if weights[v] > _F(0.0):  # rounding may end behind the last token that can be drawn
            best = v
            level -= np.float64(weights[v])
            if level < 0.0:
                break
    ids[i] = best
    logprobs[i] = (logits[start + best] - most) * factor - np.log(total)
    give_back(weights)
    give_back(sums)


@compile_outer
def draw(logits, temperature, uniform, size, ids, logprobs):
    """Sample from each row of logits [N, size] the token into whose share `uniform` [N] falls.

    Sums are float64, made of blocks, as in engines/local/sampling.py.
    """
    arguments = (logits, temperature, uniform, _U(size), ids, logprobs)
    in_parallel(_draw, ids.shape[0], arguments)


@compile_outer
def note(
    tokens, logprobs, versions, policy, ends, ending, limit, count, length, newest, stopped,
    all_tokens, all_logprobs, all_versions, over,
):  # fmt: skip
    """Add what each of B lines has sampled to what it had, and say in `over` [B] which are done.

    tokens, logprobs [B]; versions: of each policy; policy, ends, limit, count, length, newest,
    stopped: of each line, as in engines/local/batch_state.py; ending [sets of ends, V]: whether a
    token is one; all_... [lines, W].
    """
    for line in range(len(tokens)):
        token, index = tokens[line], count[line]
        all_tokens[line, index] = token
        all_logprobs[line, index] = logprobs[line]
        all_versions[line, index] = versions[policy[line]]
        newest[line] = token
        count[line] += 1
        length[line] += 1
        stopped[line] = ending[ends[line], token]
        over[line] = stopped[line] or count[line] >= limit[line]


@compile_inner(fastmath=MATH)
def _slopes(i, logits, ids, temperature, size, logprobs, entropies):
    start, block = i * size, _U(256)
    chosen = start + _U(ids[i])
    most = largest(_U(logits.ctypes.data) + start * NUMBER, size)
    factor = _F(1.0) / temperature[i]
    with_entropies = entropies.shape[0] > 0
    logprob, total, weighted = np.float64((logits[chosen] - most) * factor), 0.0, 0.0
    scores = taken(block, np.float32)
    for first in range(start, start + size, block):
        length = min(block, start + size - first)
        for v in range(length):
            scores[v] = (logits[first + v] - most) * factor
            logits[first + v] = scores[v]
        total += np.float64(exponentials(logits, first, length, _F(0.0)))
        if with_entropies:
            products = _F(0.0)
            for v in range(length):
                products += scores[v] * logits[first + v]
            weighted += np.float64(products)
    give_back(scores)
    logprobs[i] = logprob - np.log(total)
    if with_entropies:
        entropies[i] = np.log(total) - weighted / total
    share = _F(np.float64(factor) / total)
    for v in range(start, start + size):
        logits[v] *= -share
    logits[chosen] += factor


@compile_outer
def slopes(logits, ids, temperature, size, logprobs, entropies):
    """Write log-probs [N] of the ids; logits [N, size] become the gradients of each by its logits.

    entropies [N] are those of the logits, in nats; empty where they are not wanted. Sums are
    float64, made of blocks.
    """
    arguments = (logits, ids, temperature, _U(size), logprobs, entropies)
    in_parallel(_slopes, ids.shape[0], arguments)


@compile_inner
def _rope(i, x, weight, eps, cos, sin, heads, size, out):
    c = i * size
    for h in range(heads):
        n = c * heads + h * size
        if weight.shape[0] == 0:
            for d in range(size):
                out[n + d] = x[n + d]
        norm_rope(x, n, weight, eps, cos, sin, c, size, out, n)


@compile_outer
def rope(x, weight, eps, cos, sin, heads, size, out):
    """Rotate x [N, heads, D] -> out, normalised over D first if `weight` is not empty."""
    arguments = (x, weight, eps, cos, sin, _U(heads), _U(size), out)
    in_parallel(_rope, cos.shape[0] // size, arguments)


@compile_inner(forceinline=True)
def norm_row_backward(grad, g, x, n, weight, width, eps, dx, o, parts, w):
    """Write one state's gradient dx[o : o + width], and add the weights' to parts[w : ...]."""
    normalize_row_backward(
        _at(grad, g), _at(x, n), _at(weight, _U(0)), _at(dx, o), _at(parts, w), width, eps
    )


@compile_inner(forceinline=True)
def norm_rope_backward(grad, g, x, weight, eps, cos, sin, c, heads, size, dx, n, parts, w, back):
    """Compute the gradients of `norm_rope` for one token's heads, grad[g ...] and x[g ...].

    Those by x go to dx[n ...]; those by the norm are added to parts[w ...]. back [D] is scratch.
    """
    for at in range(_U(0), heads * size, size):
        rotate_row_backward(
            _at(grad, g + at), _at(cos, c), _at(sin, c), _at(back, _U(0)), size // _U(2)
        )
        if weight.shape[0] > 0:
            norm_row_backward(back, _U(0), x, g + at, weight, size, eps, dx, n + at, parts, w)
        else:
            for d in range(size):
                dx[n + at + d] = back[d]


@compile_inner
def _rope_backward(i, grad, x, weight, eps, cos, sin, heads, size, dx, parts):
    rows, w = _U(cos.shape[0]) // size, i * size
    each = (rows + _U(PARTS) - _U(1)) // _U(PARTS)
    back = taken(size, np.float32)
    for d in range(size):
        parts[w + d] = _F(0.0)
    for row in range(i * each, min(rows, (i + _U(1)) * each)):
        n, c = row * size * heads, row * size
        norm_rope_backward(grad, n, x, weight, eps, cos, sin, c, heads, size, dx, n, parts, w, back)
    give_back(back)


@compile_outer
def rope_backward(grad, x, weight, eps, cos, sin, heads, size, dx, parts):
    """Gradients of `rope`: of x [N, heads, D], and of the weights as parts [PARTS, D] to add."""
    arguments = (grad, x, weight, eps, cos, sin, _U(heads), _U(size), dx, parts)
    in_parallel(_rope_backward, PARTS, arguments)


@compile_inner
def _norm_backward(i, grad, x, weight, width, eps, dx, parts):
    rows, w = _U(x.shape[0]) // width, i * width
    each = (rows + _U(PARTS) - _U(1)) // _U(PARTS)
    for d in range(width):
        parts[w + d] = _F(0.0)
    for row in range(i * each, min(rows, (i + _U(1)) * each)):
        n = row * width
        norm_row_backward(grad, n, x, n, weight, width, eps, dx, n, parts, w)


@compile_outer
def norm_backward(grad, x, weight, width, eps, dx, parts):
    """Gradients of `norm`: of x [N, width], and of the weights as parts [PARTS, width] to add."""
    in_parallel(_norm_backward, PARTS, (grad, x, weight, _U(width), eps, dx, parts))


@compile_inner(fastmath=EACH, forceinline=True, error_model=DIVIDES)
def gate_row(x, y, n, width, out, o):
    """Compute silu(x[n ...]) * y[n ...] -> out[o ...]."""
    for d in range(width):
        out[o + d] = x[n + d] * y[n + d] / (_F(1.0) + exp(-x[n + d]))


@compile_inner(fastmath=EACH)
def _gate(i, x, y, width, out):
    gate_row(x, y, i * width, width, out, i * width)


@compile_outer
def gate(x, y, width, out):
    """Write silu(x) * y for x and y [N, width] to `out`; in place, as x or y, it would be no vector
    code.
    """
    in_parallel(_gate, x.shape[0] // width, (x, y, _U(width), out))


@compile_inner(fastmath=EACH, forceinline=True, error_model=DIVIDES)
def gate_slopes(grad, x, y):
    """Return the gradients of silu(x) * y by x and y, and the share of x that silu is."""
    s = _F(1.0) / (_F(1.0) + exp(-x))
    return grad * y * s * (_F(1.0) + x * (_F(1.0) - s)), grad * x * s, s


@compile_inner(fastmath=EACH)
def _gate_backward(i, grad, x, y, width, dx, dy):
    for d in range(i * width, (i + _U(1)) * width):
        dx[d], dy[d], _ = gate_slopes(grad[d], x[d], y[d])


@compile_outer
def gate_backward(grad, x, y, width, dx, dy):
    """Gradients of `gate` by x and y."""
    in_parallel(_gate_backward, x.shape[0] // width, (grad, x, y, _U(width), dx, dy))
