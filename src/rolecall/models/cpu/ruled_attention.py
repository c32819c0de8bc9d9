"""Computes attention over pages under a score rule: window, soft-capping, sinks; compiled by numba.

A loop of its own, beside `kernels.attend`: the one that most models take stays as fast as it was,
with the bits that it had.

Legend: N = tokens of this pass, R = rows, P = most pages of a row, H / K = query / key-value heads,
D = head size, a multiple of 8.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from rolecall.models.cpu.kernels import _EACH, _MATH, PAGE, _add, _exp, _largest, _score

UNLIMITED = 2**62  # positions: no window
_U = np.uintp
_F = np.float32


@njit(fastmath=_EACH, forceinline=True)
def _cap(scores, s, length, softcap):
    """scores[s : s + length] become softcap * tanh(scores / softcap)."""
    for t in range(length):
        scores[s + t] = softcap * np.tanh(scores[s + t] / softcap)


@njit(fastmath=_MATH, parallel=True, cache=True)
def attend(
    query, keys, values, table, row, position, order, heads, kv_heads, size, scale, window, softcap,
    sinks, out,
):  # fmt: skip
    """As `kernels.attend`, of the last `window` positions of each row up to the token's own.

    softcap 0 and no sinks: without.
    """
    heads, kv_heads, size, page = _U(heads), _U(kv_heads), _U(size), _U(PAGE)
    group, width = heads // kv_heads, size * page
    for i in prange(row.shape[0]):
        n = _U(order[i])
        end = position[n] + 1
        begin = _U(max(0, end - window))
        skipped = begin // page  # pages that the window has left
        length = _U(end) - skipped * page
        begin -= skipped * page  # what of the first page it has left
        pages = (length + page - _U(1)) // page
        room = pages * page
        scores = np.empty(heads * room, np.float32)
        powers = np.empty(room, np.int32)
        twos = powers.view(np.float32)
        q, total = np.empty(heads * size, np.float32), np.empty(heads, np.float32)
        mine = np.empty(pages, np.uintp)  # where each of its pages starts
        for p in range(pages):
            mine[p] = _U(table[row[n], skipped + p]) * kv_heads * width
        first = n * heads * size
        for d in range(heads * size):
            q[d] = query[first + d] * scale
            out[first + d] = _F(0.0)
        for p in range(pages):
            for head in range(heads):
                k = mine[p] + (head // group) * width
                _score(q, head * size, keys, k, size, scores, head * room + p * page)
        for head in range(heads):
            s, seen = head * room + begin, length - begin
            if softcap > _F(0.0):
                _cap(scores, s, seen, softcap)
            most = _largest(scores, s, seen)
            if sinks.shape[0] > 0:
                most = max(most, sinks[head])
            total[head] = _exp(scores, s, seen, most, powers, twos)
            if sinks.shape[0] > 0:
                total[head] += np.exp(sinks[head] - most)
            for t in range(begin):
                scores[head * room + t] = _F(0.0)
            for t in range(length, room):  # behind the row in its last page
                scores[head * room + t] = _F(0.0)
        for p in range(length // page):
            for head in range(heads):
                v = mine[p] + (head // group) * width
                _add(scores, head * room + p * page, values, v, size, out, first + head * size)
        for t in range(length - length % page, length):  # behind it in the page stands anything
            for head in range(heads):
                v = mine[pages - _U(1)] + (head // group) * width + (t % page) * size
                w, o = scores[head * room + t], first + head * size
                for d in range(size):
                    out[o + d] += w * values[v + d]
        for head in range(heads):
            o, share = first + head * size, _F(1.0) / total[head]
            for d in range(size):
                out[o + d] *= share
