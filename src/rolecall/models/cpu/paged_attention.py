"""Computes attention of new tokens over the pages of their rows, compiled by numba: float32.

A page holds the keys [K, D, PAGE] and values [K, PAGE, D] of 16 positions of one row. Tokens that
read the same pages (samples of one prompt, tokens of one prompt) are a group: each page is read
once for all of them. What a token gets does not depend on its group, whose sums are added up
apart (`tiles`).

Legend: N = tokens of this pass, R = rows, P = most pages of a row, H / K = query / key-value heads,
D = head size, a multiple of 8.
"""

from __future__ import annotations

import numpy as np

from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.elementary import EACH, MATH, NUMBER, exponentials, largest
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.cpu.loop_memory import give_back, taken
from rolecall.models.cpu.page_tiles import mix_pages, score_pages
from rolecall.models.cpu.parallel import in_parallel

UNLIMITED = 2**62  # positions: no window
TOKENS = 16  # most of a group
_U = np.uintp
_F = np.float32
NO_RULE = (UNLIMITED, _F(0.0), np.zeros(0, np.float32))  # window, softcap, sinks


@compile_outer
def locate(table, width, starts, counts, row, position, slot):
    """Write of each new token its row, its position in it, and its place page * PAGE + offset.

    table [R, width]: the pages of each row; starts, counts [R]: the positions that are filled, and
    the number of new tokens; row, position, slot [N].
    """
    i = 0
    for r in range(len(starts)):
        for p in range(starts[r], starts[r] + counts[r]):
            row[i], position[i] = r, p
            slot[i] = np.int64(table[r * width + p // PAGE]) * PAGE + p % PAGE
            i += 1


@compile_outer
def groups(table, row, position, order):
    """Return where groups of at most TOKENS begin in `order`, and the pages that each shares.

    order [N]: the tokens, those whose rows begin alike side by side. A token joins the group
    before it if half of what the group shares, or more, is the token's too.
    """
    first, shared = [0], [position[order[0]] // PAGE + 1]
    for i in range(1, len(order)):
        last, new = order[i - 1], order[i]
        pages = position[new] // PAGE + 1
        if row[order[first[-1]]] == row[new]:  # all of the group, whose rows stand side by side
            common = max(pages, shared[-1])
        else:
            common = min(pages, shared[-1])
            for p in range(common):
                if table[row[last], p] != table[row[new], p]:
                    common = p
                    break
        if i - first[-1] < TOKENS and 2 * common >= shared[-1]:
            shared[-1] = common
        else:
            first.append(i)
            shared.append(pages)
    first.append(len(order))
    return np.array(first), np.array(shared)


@compile_inner(fastmath=EACH, forceinline=True)
def _cap(scores, s, length, softcap):
    """Turn scores[s : s + length] into softcap * tanh(scores / softcap)."""
    for t in range(length):
        scores[s + t] = softcap * np.tanh(scores[s + t] / softcap)


@compile_inner(fastmath=MATH)
def _attend(
    item, query, keys, values, table, row, position, order, group_first, group_shared, heads,
    kv_heads, size, scale, window, softcap, sinks, out,
):  # fmt: skip
    heads, kv_heads, size, page = _U(heads), _U(kv_heads), _U(size), _U(PAGE)
    each, width = heads // kv_heads, size * page
    at_keys, at_values = _U(keys.ctypes.data), _U(values.ctypes.data)
    g, k = item // kv_heads, item % kv_heads
    tokens = order[group_first[g] : group_first[g + _U(1)]]
    rows = _U(len(tokens)) * each
    nearest, longest = position[tokens[0]] + 1, position[tokens[0]] + 1
    for n in tokens:
        nearest, longest = min(nearest, position[n] + 1), max(longest, position[n] + 1)
    gone = _U(max(0, nearest - window)) // page  # pages that the windows of all have left
    room = (_U(longest) + page - _U(1)) // page * page - gone * page
    length = _U(longest) - gone * page
    shared = min(_U(max(0, np.int64(group_shared[g]) - np.int64(gone))), room // page)
    # Scores [rows, room], queries and what they get [rows, D].
    memory = taken(rows * (room + _U(2) * size), np.float32)
    queries, mixed = rows * room, rows * (room + size)
    total = taken(rows, np.float32)
    pages = taken(room // page, np.uintp)  # where each of them starts
    at_scores = _U(memory.ctypes.data)
    at_queries, at_mixed = at_scores + queries * NUMBER, at_scores + mixed * NUMBER
    for m in range(_U(len(tokens))):
        source, to = (_U(tokens[m]) * heads + k * each) * size, queries + m * each * size
        for d in range(each * size):
            memory[to + d] = query[source + d] * scale
            memory[to + rows * size + d] = _F(0.0)
    for p in range(shared):
        pages[p] = (_U(table[row[tokens[0]], gone + p]) * kv_heads + k) * width
    score_pages(at_scores, room, at_queries, rows, at_keys, pages, _U(0), shared, size)
    for m in range(_U(len(tokens))):
        n = tokens[m]
        end = _U(position[n] + 1) - gone * page
        begin = _U(max(0, position[n] + 1 - window - np.int64(gone * page)))
        last = (end + page - _U(1)) // page
        for p in range(shared, last):
            pages[p] = (_U(table[row[n], gone + p]) * kv_heads + k) * width
        s = m * each * room
        score_pages(
            at_scores + s * NUMBER, room, at_queries + m * each * size * NUMBER, each,
            at_keys, pages, shared, last, size,
        )  # fmt: skip
        for h in range(each):
            s, sink = (m * each + h) * room, k * each + h
            if softcap > _F(0.0):
                _cap(memory, s + begin, end - begin, softcap)
            most = largest(at_scores + (s + begin) * NUMBER, end - begin)
            if sinks.shape[0] > 0:
                most = max(most, sinks[sink])
            weight = exponentials(memory, s + begin, end - begin, most)
            if sinks.shape[0] > 0:
                weight += np.exp(sinks[sink] - most)
            total[m * each + h] = _F(1.0) / weight
            for t in range(begin):
                memory[s + t] = _F(0.0)
            for t in range(end, room):
                memory[s + t] = _F(0.0)
    mix_pages(at_mixed, at_scores, room, rows, at_values, pages, _U(0), shared, length, size)
    for m in range(_U(len(tokens))):
        n = tokens[m]
        end = _U(position[n] + 1) - gone * page
        last = (end + page - _U(1)) // page
        for p in range(shared, last):
            pages[p] = (_U(table[row[n], gone + p]) * kv_heads + k) * width
        mix_pages(
            at_mixed + m * each * size * NUMBER, at_scores + m * each * room * NUMBER, room,
            each, at_values, pages, shared, last, end, size,
        )  # fmt: skip
        to, source = (_U(n) * heads + k * each) * size, mixed + m * each * size
        for h in range(each):
            for d in range(h * size, (h + _U(1)) * size):
                out[to + d] = memory[source + d] * total[m * each + h]
    give_back(memory)
    give_back(total)
    give_back(pages)


@compile_outer
def attend(
    query, keys, values, table, row, position, order, group_first, group_shared, heads, kv_heads,
    size, scale, window, softcap, sinks, out,
):  # fmt: skip
    """Attend with query [N, H, D] of tokens at `position` [N] of `row` [N] -> out [N, H, D].

    table [R, P] names the pages of each row; order, group_first, group_shared: see `groups`. A
    token sees the last `window` positions of its row up to its own. softcap 0 and no sinks:
    without.
    """
    arguments = (
        query, keys, values, table, row, position, order, group_first, group_shared, heads,
        kv_heads, size, scale, window, softcap, sinks, out,
    )  # fmt: skip
    in_parallel(_attend, len(group_shared) * kv_heads, arguments)
