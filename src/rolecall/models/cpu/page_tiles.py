"""Multiplies a few rows with many pages of keys or values inside numba's loops, by `tiles`.

A page alone gives two rows too few sums to keep a processor busy: here the sums of several pages
are added up at once, and what is written between pages stays in registers. Each sum is the one that
`tiles` computes, and sums of pages are added in the order of the pages. Pages are asked for while
those before them are multiplied: a processor cannot guess where they are.

Addresses and strides are given as in `tiles`; `pages` says where each page starts, counted in
numbers behind the first of all keys or values.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from rolecall.models.cpu.compiled import compile_inner
from rolecall.models.cpu.elementary import NUMBER
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.cpu.tiles import TILE_BLOCKS, TILE_ROWS, add_product, add_up, over_rows
from rolecall.models.cpu.vectors import (
    INDEX,
    LANES,
    VECTOR,
    add,
    make_function,
    moved,
    vector_at,
)

assert PAGE == LANES  # a page of keys is one block of columns
NEAR = 256  # a few pages are read for all rows, as many as the first cache holds: NEAR / D
SUMS = TILE_BLOCKS * TILE_ROWS[0]  # of a tile
_U = np.uintp
_ADDRESS = _U(8)  # bytes of a number of this type


@compile_inner(forceinline=True)
def score_pages(scores, room, queries, rows, keys, pages, first, last, size):
    """Write the products of queries [rows, D] and the pages first ... last to scores [rows, room].

    All but the numbers of pages, an array, are addresses.
    """
    few = max(_U(4), _U(NEAR) // size)
    for p in range(first, last, few):
        _score(
            scores + p * _U(PAGE) * NUMBER, room, queries, size, keys,
            _U(pages.ctypes.data) + p * _ADDRESS, min(few, last - p), last - p, rows,
        )  # fmt: skip


@compile_inner(forceinline=True)
def mix_pages(out, scores, room, rows, values, pages, first, last, length, size):
    """Add to out [rows, D] the values of pages first ... last, of the `length` positions of all."""
    page, few, columns = _U(PAGE), max(_U(4), _U(NEAR) // size), _U(TILE_BLOCKS * LANES)
    full = max(first, min(last, length // page))  # pages before this one are
    wide = size - size % columns
    for p in range(first, full, few):
        for c in range(_U(0), wide, columns):
            _mix(
                out + c * NUMBER, size, scores + p * page * NUMBER, room, values + c * NUMBER,
                _U(pages.ctypes.data) + p * _ADDRESS, min(few, full - p), full - p, rows,
            )  # fmt: skip
    for p in range(first if wide < size else full, last):
        done, count = (wide, page) if p < full else (_U(0), min(page, length - p * page))
        add_product(
            out + done * NUMBER, size, scores + p * page * NUMBER, room, _U(1),
            values + (pages[p] + done) * NUMBER, size, count, rows, size - done,
        )  # fmt: skip


def _page(builder: ir.IRBuilder, start: ir.Value, pages: ir.Value, index: ir.Value) -> ir.Value:
    """Return the address of the page whose start stands at this index of `pages`."""
    pointer = builder.inttoptr(moved(builder, pages, index, INDEX(2)), INDEX.as_pointer())
    return moved(builder, start, builder.load(pointer), INDEX(1))


def _get_following(
    builder: ir.IRBuilder, page: ir.Value, number: int, available: ir.Value
) -> ir.Value:
    """Return the index of the page so many behind this one, or of the last that there is."""
    later, last = builder.add(page, INDEX(number)), builder.sub(available, INDEX(1))
    return builder.select(builder.icmp_unsigned("<", later, last), later, last)


def _rows(
    builder: ir.IRBuilder, start: ir.Value, first: ir.Value, stride: ir.Value, number: int
) -> list[ir.Value]:
    """Return the addresses of so many rows from the first on."""
    return [moved(builder, start, builder.add(first, INDEX(r)), stride) for r in range(number)]


def _pages_at_once(sums: int) -> tuple[int, ...]:
    """Return of how many pages sums are added up at once, if one page has this many."""
    return tuple(number for number in (4, 2, 1) if number * sums <= SUMS)


def _write_scores(
    builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
    keys: ir.Value, pages: ir.Value, count: ir.Value, available: ir.Value, rows: ir.Value,
) -> None:  # fmt: skip
    def tile(first: ir.Value, number: int) -> None:
        lines = _rows(builder, out, first, out_row, number)
        starts = _rows(builder, a, first, a_row, number)

        def some(first_page: ir.Value, number: int) -> None:
            indices = [builder.add(first_page, INDEX(i)) for i in range(number)]
            blocks = [_page(builder, keys, pages, one) for one in indices]
            pairs = [(start, block) for start in starts for block in blocks]
            following = [_get_following(builder, one, number, available) for one in indices]
            fetched = [_page(builder, keys, pages, one) for one in following]
            sums = iter(
                add_up(
                    builder, pairs, INDEX(1), INDEX(PAGE), a_row, lanes=LANES, fetched=fetched,
                    level=3,
                )
            )  # fmt: skip
            for line in lines:
                for one in indices:
                    target = moved(builder, line, one, INDEX(PAGE))
                    builder.store(next(sums), vector_at(builder, target), align=4)

        over_rows(builder, count, _pages_at_once(len(lines)), some)

    over_rows(builder, rows, TILE_ROWS, tile)


def _write_mixed(
    builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
    values: ir.Value, pages: ir.Value, count: ir.Value, available: ir.Value, rows: ir.Value,
) -> None:  # fmt: skip
    def tile(first: ir.Value, number: int) -> None:
        lines = _rows(builder, out, first, out_row, number)
        starts = _rows(builder, a, first, a_row, number)
        targets = [
            vector_at(builder, moved(builder, line, INDEX(i), INDEX(LANES)))
            for line in lines
            for i in range(TILE_BLOCKS)
        ]
        totals = [cgutils.alloca_once(builder, VECTOR) for _ in targets]
        for target, total in zip(targets, totals, strict=True):
            builder.store(builder.load(target, align=4), total)

        def some(first_page: ir.Value, number: int) -> None:
            pairs: list[tuple[ir.Value, ir.Value]] = []
            fetched: list[ir.Value] = []

            def split_columns(page: ir.Value) -> list[ir.Value]:
                block = _page(builder, values, pages, page)
                return [moved(builder, block, INDEX(c), INDEX(LANES)) for c in range(TILE_BLOCKS)]

            for i in range(number):
                p = builder.add(first_page, INDEX(i))
                columns = split_columns(p)
                fetched += split_columns(_get_following(builder, p, number, available))
                weights = [moved(builder, start, p, INDEX(PAGE)) for start in starts]
                pairs += [(weight, column) for weight in weights for column in columns]
            sums = iter(
                add_up(
                    builder, pairs, INDEX(1), out_row, INDEX(PAGE), lanes=LANES, fetched=fetched,
                    level=3,
                )
            )  # fmt: skip
            for _ in range(number):
                for total in totals:
                    builder.store(add(builder, builder.load(total), next(sums)), total)

        over_rows(builder, count, _pages_at_once(len(totals)), some)
        for target, total in zip(targets, totals, strict=True):
            builder.store(builder.load(total), target, align=4)

    over_rows(builder, rows, TILE_ROWS, tile)


_ADDRESSES = [types.uintp] * 9
_score = make_function("rolecall_score_pages", _ADDRESSES, _write_scores)
"""(out, out_row, a, a_row, keys, pages, count, available, rows): write to out[r, PAGE p + c] the
sum of a[r, d] * key page p [d, c] over d < a_row, for p < count, c < PAGE. Of the `available` pages
some are asked for ahead."""
_mix = make_function("rolecall_mix_pages", _ADDRESSES, _write_mixed)
"""(out, out_row, a, a_row, values, pages, count, available, rows): add to out[r, c] the sum of
a[r, PAGE p + t] * value page p [t, c] over t < PAGE, p < count, for c < TILE_BLOCKS * LANES; a row
of a page has as many numbers as one of `out`."""
