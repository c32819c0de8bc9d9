"""Computes attention over packed prefix trees on a CPU, forward and backward, compiled by numba.

A block is a few tokens of one branch. All that it sees (the branches above, whole, and its own up
to it) is scored at once, so each block needs one softmax and nothing is merged. The backward pass
makes the scores again from the logarithms of the softmaxes' sums, as flash attention does
(2205.14135).

Legend: N = tokens in the flat row, H / K = query / key-value heads, D = head size, a multiple of 8,
B = blocks, S = segments: the branches that a block sees, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from rolecall.models.cpu import kernels
from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.elementary import MATH, NUMBER, exponentials, largest
from rolecall.models.cpu.kernels import PAGE, flat
from rolecall.models.cpu.loop_memory import give_back, taken
from rolecall.models.cpu.page_tiles import score_pages
from rolecall.models.cpu.parallel import in_parallel
from rolecall.models.cpu.short_rows import sum_products, weigh_pulls
from rolecall.models.cpu.tiles import add_product

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


BLOCK = 16  # most tokens of a block
_U = np.uintp
_F = np.float32
_UNSEEN = _F(-1e30)  # a score whose exponential is 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Holds what is computed together, as arrays for numba."""

    start: np.ndarray  # [B] first token
    stop: np.ndarray  # [B]
    first: np.ndarray  # [B + 1] where its segments begin
    segment_start: np.ndarray  # [S] first token; the last segment of a block is its own branch
    segment_size: np.ndarray  # [S] tokens, of the own branch up to the block's end
    segment_page: np.ndarray  # [S] where its keys are laid out
    page_start: np.ndarray  # [pages] first token
    page_size: np.ndarray  # [pages] tokens; the others are zeros
    root: np.ndarray  # [trees + 1] where the blocks of each tree begin
    cost: np.ndarray  # [trees] pairs of tokens that are computed

    def shares(self, heads: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
        """Trees and heads, numbered tree * heads + head, in parts of about the same cost."""
        load: list[float] = [0.0] * parts
        units: list[list[int]] = [[] for _ in range(parts)]
        for tree in np.argsort(-self.cost, kind="stable").tolist():
            for head in range(heads):
                least = load.index(min(load))
                load[least] += float(self.cost[tree])
                units[least].append(tree * heads + head)
        first = np.cumsum([0, *map(len, units)])
        return first, np.array([unit for share in units for unit in share])


def make_blocks(branches: list[tuple[int, int, int]]) -> Blocks:
    """Make blocks. branches: first token, the token after the last, and that after all which follow
    it.
    """
    sizes = np.array([stop - start for start, stop, _ in branches])
    pages = -(-sizes // PAGE)
    page = np.cumsum(pages) - pages
    above: list[int] = []  # branches that the next one may follow
    rows: list[tuple[int, int]] = []
    segments: list[tuple[int, int, int]] = []
    first, root, cost = [0], [0], []
    for number, (start, stop, end) in enumerate(branches):
        while above and branches[above[-1]][2] <= start:
            above.pop()
        if not above:
            if number:
                root.append(len(rows))
            cost.append(0)
        for block in range(start, stop, BLOCK):
            last = min(stop, block + BLOCK)
            seen = [(branches[a][0], int(sizes[a]), int(page[a])) for a in above]
            seen.append((start, last - start, int(page[number])))
            rows.append((block, last))
            segments += seen
            first.append(len(segments))
            cost[-1] += (last - block) * sum(size for _, size, _ in seen)
        if stop < end:
            above.append(number)
    inside = np.arange(pages.sum()) - np.repeat(page, pages)
    starts = np.repeat([start for start, _, _ in branches], pages) + inside * PAGE
    rest = np.repeat([stop for _, stop, _ in branches], pages) - starts
    start_B, stop_B = np.array(rows).T.copy()
    start_S, size_S, page_S = np.array(segments).T.copy()
    return Blocks(
        start=start_B, stop=stop_B, first=np.array(first), segment_start=start_S,
        segment_size=size_S, segment_page=page_S, page_start=starts,
        page_size=np.minimum(rest, PAGE), root=np.array([*root, len(rows)]), cost=np.array(cost),
    )  # fmt: skip


@compile_inner
def _lay_out(p, x, page_start, page_size, kv_heads, size, out):
    start, count, page = _U(page_start[p]), _U(page_size[p]), _U(PAGE)
    for k in range(kv_heads):
        to = (p * kv_heads + k) * size * page
        for t in range(count):
            source = ((start + t) * kv_heads + k) * size
            for d in range(size):
                out[to + d * page + t] = x[source + d]
        for d in range(size):
            for t in range(count, page):
                out[to + d * page + t] = _F(0.0)


@compile_outer
def lay_out(x, page_start, page_size, kv_heads, size, out):
    """Lay out x [N, K, D] -> pages [pages, K, D, PAGE] of the tokens of each, then zeros."""
    arguments = (x, page_start, page_size, _U(kv_heads), _U(size), out)
    in_parallel(_lay_out, len(page_start), arguments)


@compile_inner(forceinline=True)
def _find_pages(first, last, sizes, first_page, head, heads, width, pages):
    """Fill `pages` with where the pages of a block's segments begin, `width` numbers each."""
    column = _U(0)
    for s in range(first, last):
        for p in range((_U(sizes[s]) + _U(PAGE) - _U(1)) // _U(PAGE)):
            pages[column] = ((_U(first_page[s]) + p) * heads + head) * width
            column += _U(1)


@compile_inner(forceinline=True)
def _room(first, last, sizes):
    """Numbers of a row of scores: those of each segment and up to the end of its page."""
    page, total = _U(PAGE), _U(0)
    for s in range(first, last):
        total += (_U(sizes[s]) + page - _U(1)) // page * page
    return total


@compile_inner(forceinline=True)
def _fill_unseen(scores, row, token, first, last, starts, sizes, value):
    """Give scores[row ...] of one token this value where it sees nothing: behind the end of each
    segment, and of its own branch behind itself."""
    page, column = _U(PAGE), _U(0)
    for s in range(first, last):
        seen = _U(sizes[s]) if s + 1 < last else _U(token) + _U(1) - _U(starts[s])
        end = (_U(sizes[s]) + page - _U(1)) // page * page
        for t in range(seen, end):
            scores[row + column + t] = value
        column += end


@compile_inner(fastmath=MATH)
def _forward(
    item, query, keys, value, start, stop, first, segment_start, segment_size, segment_page, heads,
    kv_heads, size, scale, out, sums,
):  # fmt: skip
    heads, kv_heads, size, page = _U(heads), _U(kv_heads), _U(size), _U(PAGE)
    each = heads // kv_heads
    at_keys, at_value = _U(keys.ctypes.data), _U(value.ctypes.data)
    b, k = item // kv_heads, item % kv_heads
    head, begin, end = first[b], _U(start[b]), _U(stop[b])
    last = first[b + _U(1)]
    rows, room = (end - begin) * each, _room(head, last, segment_size)
    # Scores [rows, room], queries and what they get [rows, D].
    memory = taken(rows * (room + _U(2) * size), np.float32)
    queries, mixed = rows * room, rows * (room + size)
    at_scores = _U(memory.ctypes.data)
    at_mixed = at_scores + mixed * NUMBER
    shares = taken(rows, np.float32)
    for m in range(end - begin):
        source, to = ((begin + m) * heads + k * each) * size, queries + m * each * size
        for d in range(each * size):
            memory[to + d] = query[source + d] * scale
            memory[to + rows * size + d] = _F(0.0)
    pages = taken(room // page, np.uintp)
    _find_pages(head, last, segment_size, segment_page, k, kv_heads, size * page, pages)
    score_pages(
        at_scores, room, at_scores + queries * NUMBER, rows, at_keys, pages, _U(0), room // page,
        size,
    )  # fmt: skip
    for r in range(rows):
        row, token = r * room, begin + r // each
        _fill_unseen(memory, row, token, head, last, segment_start, segment_size, _UNSEEN)
        most = largest(at_scores + row * NUMBER, room)
        total = exponentials(memory, row, room, most)
        _fill_unseen(memory, row, token, head, last, segment_start, segment_size, _F(0.0))
        sums[token * heads + k * each + r % each] = most + np.log(total)
        shares[r] = _F(1.0) / total
    column = _U(0)
    for s in range(head, last):
        count = _U(segment_size[s])
        add_product(
            at_mixed, size, at_scores + column * NUMBER, room, _U(1),
            at_value + (_U(segment_start[s]) * kv_heads + k) * size * NUMBER,
            kv_heads * size, count, rows, size,
        )  # fmt: skip
        column += (count + page - _U(1)) // page * page
    for r in range(rows):
        to, source = (
            ((begin + r // each) * heads + k * each + r % each) * size,
            mixed + r * size,
        )
        for d in range(size):
            out[to + d] = memory[source + d] * shares[r]
    give_back(memory)
    give_back(pages)
    give_back(shares)


@compile_outer
def forward(
    query, keys, value, start, stop, first, segment_start, segment_size, segment_page, heads,
    kv_heads, size, scale, out, sums,
):  # fmt: skip
    """Attend with query [N, H, D], keys laid out, value [N, K, D] -> out [N, H, D].

    sums [N, H]: the logarithms of the softmaxes' sums.
    """
    arguments = (
        query, keys, value, start, stop, first, segment_start, segment_size, segment_page, heads,
        kv_heads, size, scale, out, sums,
    )  # fmt: skip
    in_parallel(_forward, len(start) * kv_heads, arguments)


@compile_inner(fastmath=MATH)
def _backward(
    part, grad, query, keys, key, values, out, sums, start, stop, first, segment_start,
    segment_size, segment_page, root, part_first, part_units, heads, kv_heads, size, scale, dq, dk,
    dv,
):  # fmt: skip
    heads, kv_heads, size, page = _U(heads), _U(kv_heads), _U(size), _U(PAGE)
    each = heads // kv_heads
    at_keys, at_key = _U(keys.ctypes.data), _U(key.ctypes.data)
    at_values, at_dk, at_dv = _U(values.ctypes.data), _U(dk.ctypes.data), _U(dv.ctypes.data)
    at_grad, at_out = _U(grad.ctypes.data), _U(out.ctypes.data)
    for unit in part_units[part_first[part] : part_first[part + 1]]:
        tree, k = _U(unit) // kv_heads, _U(unit) % kv_heads
        for b in range(root[tree], root[tree + _U(1)]):
            head, begin, end, last = first[b], _U(start[b]), _U(stop[b]), first[b + 1]
            rows, room = (end - begin) * each, _room(head, last, segment_size)
            # Weights, pulls [rows, room]; queries, gradients, those of queries [rows, D].
            memory = taken(rows * (_U(2) * room + _U(3) * size), np.float32)
            pulls, queries = rows * room, _U(2) * rows * room
            grads, pulled = queries + rows * size, queries + _U(2) * rows * size
            at_weights = _U(memory.ctypes.data)
            at_pulls, at_queries = at_weights + pulls * NUMBER, at_weights + queries * NUMBER
            at_grads, at_pulled = at_weights + grads * NUMBER, at_weights + pulled * NUMBER
            for m in range(end - begin):
                source, to = ((begin + m) * heads + k * each) * size, m * each * size
                for d in range(each * size):
                    memory[queries + to + d] = query[source + d] * scale
                    memory[grads + to + d] = grad[source + d]
                    memory[pulled + to + d] = _F(0.0)
            pages = taken(room // page, np.uintp)
            _find_pages(head, last, segment_size, segment_page, k, kv_heads, size * page, pages)
            score_pages(
                at_weights, room, at_queries, rows, at_keys, pages, _U(0), room // page, size
            )
            score_pages(at_pulls, room, at_grads, rows, at_values, pages, _U(0), room // page, size)
            for r in range(rows):
                row, token, h = r * room, begin + r // each, k * each + r % each
                source = (token * heads + h) * size * NUMBER
                along = sum_products(at_grad + source, at_out + source, size)
                _fill_unseen(memory, row, token, head, last, segment_start, segment_size, _UNSEEN)
                exponentials(memory, row, room, sums[token * heads + h])
                _fill_unseen(memory, row, token, head, last, segment_start, segment_size, _F(0.0))
                weigh_pulls(at_weights + row * NUMBER, at_pulls + row * NUMBER, along, room)
            column = _U(0)
            for s in range(head, last):
                count = _U(segment_size[s])
                own = (_U(segment_start[s]) * kv_heads + k) * size * NUMBER
                add_product(
                    at_dv + own, kv_heads * size, at_weights + column * NUMBER, _U(1), room,
                    at_grads, size, rows, count, size,
                )  # fmt: skip
                add_product(
                    at_dk + own, kv_heads * size, at_pulls + column * NUMBER, _U(1), room,
                    at_queries, size, rows, count, size,
                )  # fmt: skip
                add_product(
                    at_pulled, size, at_pulls + column * NUMBER, room, _U(1), at_key + own,
                    kv_heads * size, count, rows, size,
                )  # fmt: skip
                column += (count + page - _U(1)) // page * page
            for m in range(end - begin):
                to, source = ((begin + m) * heads + k * each) * size, pulled + m * each * size
                for d in range(each * size):
                    dq[to + d] = memory[source + d] * scale
            give_back(memory)
            give_back(pages)


@compile_outer
def backward(
    grad, query, keys, key, values, out, sums, start, stop, first, segment_start, segment_size,
    segment_page, root, part_first, part_units, heads, kv_heads, size, scale, dq, dk, dv,
):  # fmt: skip
    """Gradients dq, dk, dv, of which dk and dv are zeros before; keys and values are given laid
    out, too.

    A tree's head of keys is a unit, and only its own blocks add to its gradients; units are
    computed in parts (`Blocks.shares`).
    """
    arguments = (
        grad, query, keys, key, values, out, sums, start, stop, first, segment_start, segment_size,
        segment_page, root, part_first, part_units, heads, kv_heads, size, scale, dq, dk, dv,
    )  # fmt: skip
    in_parallel(_backward, len(part_first) - 1, arguments)


class TreeAttention(Function):
    """query [H, N, D], key and value [K, N, D] -> [N, H, D]."""

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: Blocks,
        scale: float,
    ) -> Tensor:
        kernels.use_threads()
        # [N, H, D]: as projections make them, so that nothing is copied
        query, key, value = (x.transpose(0, 1).contiguous() for x in (query, key, value))
        out, sums = torch.empty_like(query), query.new_empty(query.shape[:2])
        sizes = (query.shape[1], *key.shape[1:])
        forward(
            flat(query), flat(_laid_out(key, blocks)), flat(value), *_as_arrays(blocks), *sizes,
            np.float32(scale), flat(out), flat(sums),
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.blocks, ctx.scale = blocks, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernels.use_threads()
        query, key, value, out, sums = ctx.saved_tensors
        blocks, sizes = ctx.blocks, (query.shape[1], *key.shape[1:])
        dq, dk, dv = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        backward(
            flat(grad.contiguous()), flat(query), flat(_laid_out(key, blocks)), flat(key),
            flat(_laid_out(value, blocks)), flat(out), flat(sums), *_as_arrays(blocks),
            blocks.root, *blocks.shares(sizes[1], torch.get_num_threads()), *sizes,
            np.float32(ctx.scale), flat(dq), flat(dk), flat(dv),
        )  # fmt: skip
        return *(x.transpose(0, 1) for x in (dq, dk, dv)), None, None


def _as_arrays(blocks: Blocks) -> tuple[np.ndarray, ...]:
    return (
        blocks.start, blocks.stop, blocks.first, blocks.segment_start, blocks.segment_size,
        blocks.segment_page,
    )  # fmt: skip


def _laid_out(x: Tensor, blocks: Blocks) -> Tensor:
    """Lay out x [N, K, D] -> [pages, K, D, PAGE]."""
    out = x.new_empty(len(blocks.page_start), *x.shape[1:], PAGE)
    lay_out(flat(x), blocks.page_start, blocks.page_size, *x.shape[1:], flat(out))
    return out
