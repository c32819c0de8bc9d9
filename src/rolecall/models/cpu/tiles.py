"""Multiplies small matrices inside numba's loops as fast as the processor can.

LLVM makes good vector code of a plain loop, but keeps no sums in registers across it. Here they
are: a tile of 8 rows by 32 columns of sums (6 by 16 where vectors are short) is held in registers
while the loop runs over what is added up, so that loads are few. Each sum is added up in order, by
fused multiply-adds, whatever tile it stands in, and then added to what stands in its place: so
results do not depend on what is computed beside them.

Arrays are given as addresses and strides as numbers, all of them unsigned: out[r, c] stands
out_row * r + c numbers behind out, a[r, k] stands a_row * r + a_step * k behind a, and b[k, c]
stands b_step * k + c behind b. numba frees an array of which only the address is still used;
what `loop_memory.taken` gives stays until it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils

from rolecall.models.cpu.compiled import compile_outer
from rolecall.models.cpu.elementary import NUMBER
from rolecall.models.cpu.vectors import (
    BITS,
    FLOAT,
    INDEX,
    LANES,
    add,
    declare,
    make_function,
    moved,
    repeated,
    vector_at,
)

_U = np.uintp


# Writes what adds the product of two vectors to a third.
MultiplyAdd = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]


def fused_multiply_add(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, total: ir.Value
) -> ir.Value:
    """Return first * second + total, rounded once."""
    fma = declare(builder.module, f"llvm.fma.v{total.type.count}f32", [total.type] * 3, total.type)
    return builder.call(fma, [first, second, total])


def make_product(blocks: int, lanes: int) -> Callable[..., None]:
    """Return a function for numba, of that many vectors of columns side by side.

    It takes out, out_row, a, a_row, a_step, b, b_step, count and rows: out[r, c] += sum of
    a[r, k] * b[k, c] over k < count, for all r < rows, c < blocks * lanes.
    """

    def write(
        builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
        *others: ir.Value,
    ) -> None:  # fmt: skip
        *strides, rows = others

        def tile(first: ir.Value, number: int) -> None:
            lines = moved(builder, out, first, out_row), moved(builder, a, first, a_row)
            operands = (lines[0], out_row, lines[1], a_row, *strides)
            _tile(builder, *operands, rows=number, blocks=blocks, lanes=lanes)

        over_rows(builder, rows, TILE_ROWS, tile)

    return make_function(f"rolecall_product_{blocks}_{lanes}", [types.uintp] * 9, write)


def make_block_product(name: str, multiply_add: MultiplyAdd) -> Callable[..., None]:
    """Return a function for numba, of a block of BLOCK columns of a weight that is laid out.

    It takes out, out_row, a, a_row, b, count and rows: out[r, c] += sum of a[r, k] * b[k, c] over
    k < count, for all r < rows, c < BLOCK. The next block of the weight follows b in memory. Each
    tile asks for a share of it, so that memory is read while all tiles are multiplied. 16 to 64
    rows took 1.1 to 1.25 times as long where the first tile asked for the whole block (measured).
    """
    columns, step, one = TILE_BLOCKS * LANES, INDEX(BLOCK), INDEX(1)

    def write(
        builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
        b: ir.Value, count: ir.Value, rows: ir.Value,
    ) -> None:  # fmt: skip
        def multiply_columns(first_column: int) -> None:
            offset = INDEX(first_column)
            out_part, b_part = (moved(builder, start, offset, one) for start in (out, b))
            following = moved(builder, b, count, INDEX(BLOCK + first_column))
            for_a_row = builder.udiv(builder.mul(count, INDEX(columns)), rows)

            def tile(first: ir.Value, number: int) -> None:
                share = moved(builder, following, first, for_a_row)
                lines = [moved(builder, share, INDEX(i), INDEX(LANES)) for i in range(TILE_BLOCKS)]
                rounded_up = builder.add(INDEX(columns * number), builder.sub(rows, one))
                _tile(
                    builder, moved(builder, out_part, first, out_row), out_row,
                    moved(builder, a, first, a_row), a_row, one, b_part, step, count, rows=number,
                    blocks=TILE_BLOCKS, lanes=LANES, multiply_add=multiply_add, fetched=lines,
                    fetched_step=builder.udiv(rounded_up, rows),
                )  # fmt: skip

            over_rows(builder, rows, TILE_ROWS, tile)

        for first_column in range(0, BLOCK, columns):
            multiply_columns(first_column)

    return make_function(name, [types.uintp] * 7, write)


def has_feature(name: str) -> bool:
    """Return whether numba compiles for a processor with this feature, as LLVM names it."""
    features = config.CPU_FEATURES
    if features is not None:
        return f"+{name}" in features.split(",")
    return bool(get_host_cpu_features().get(name))


# A tile's blocks of columns, and its rows: the first number as long as there are so many, then the
# others. They are as many sums as registers hold, because an addition takes some steps.
HAS_AVX512 = has_feature("avx512f")  # vectors of LANES numbers
TILE_BLOCKS, TILE_ROWS = (2, (8, 4, 2, 1)) if HAS_AVX512 else (1, (6, 4, 2, 1))
_two_blocks = make_product(2, LANES)
_one_block = make_product(1, LANES)
_half_block = make_product(1, LANES // 2)
BLOCK = 2 * LANES  # columns of a weight that is laid out that stand side by side
add_block = make_block_product("rolecall_block", fused_multiply_add)


def over_rows(
    builder: ir.IRBuilder,
    rows: ir.Value,
    sizes: Sequence[int],
    tile: Callable[[ir.Value, int], None],
) -> None:
    """Call `tile` with the first row and the number of rows of each tile.

    Tiles have sizes[0] rows, then each of the other sizes if so many are left.
    """
    most, *smaller = sizes
    with cgutils.for_range(builder, builder.udiv(rows, INDEX(most)), intp=INDEX) as loop:
        tile(builder.mul(loop.index, INDEX(most)), most)
    remaining = builder.urem(rows, INDEX(most))
    for number in smaller:
        fits = builder.icmp_unsigned(">=", remaining, INDEX(number))
        with builder.if_then(fits):
            tile(builder.sub(rows, remaining), number)
        remaining = builder.select(fits, builder.sub(remaining, INDEX(number)), remaining)


def _tile(
    builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
    a_step: ir.Value, b: ir.Value, b_step: ir.Value, count: ir.Value, *, rows: int, blocks: int,
    lanes: int, multiply_add: MultiplyAdd = fused_multiply_add, fetched: Sequence[ir.Value] = (),
    fetched_step: ir.Value | None = None,
) -> None:  # fmt: skip
    starts_a = [moved(builder, a, INDEX(r), a_row) for r in range(rows)]
    starts_b = [moved(builder, b, INDEX(i), INDEX(lanes)) for i in range(blocks)]
    lines = [moved(builder, out, INDEX(r), out_row) for r in range(rows)]
    places = [
        vector_at(builder, moved(builder, line, INDEX(i), INDEX(lanes)), lanes)
        for line in lines
        for i in range(blocks)
    ]
    for target in places:
        fetch(builder, target, is_written=True, level=3)
    pairs = [(a_r, b_i) for a_r in starts_a for b_i in starts_b]
    sums = add_up(
        builder, pairs, a_step, b_step, count, lanes=lanes, multiply_add=multiply_add,
        fetched=fetched, fetched_step=fetched_step,
    )  # fmt: skip
    for target, end in zip(places, sums, strict=True):  # read now: the loop need not wait for it
        builder.store(add(builder, builder.load(target, align=4), end), target, align=4)


def add_up(
    builder: ir.IRBuilder, pairs: Sequence[tuple[ir.Value, ir.Value]], a_step: ir.Value,
    b_step: ir.Value, count: ir.Value, *, lanes: int,
    multiply_add: MultiplyAdd = fused_multiply_add, fetched: Sequence[ir.Value] = (),
    fetched_step: ir.Value | None = None, level: int = 2,
) -> list[ir.Value]:  # fmt: skip
    """Return for each pair of addresses (a, b) the sum of a[a_step k] * b[b_step k + c], k < count.

    All sums are added up in one loop, each in the order of k. fetched: addresses from which memory
    is asked for, at steps of `fetched_step` numbers (else those of b), into caches as `fetch`
    takes them.
    """
    vector = ir.VectorType(FLOAT, lanes)
    start, zeros = builder.block, ir.Constant(vector, [0.0] * lanes)
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_unsigned("<", INDEX(0), count), loop, after)

    builder.position_at_end(loop)
    k = builder.phi(INDEX)
    sums = [builder.phi(vector) for _ in pairs]
    then = []
    for address in fetched:
        line = vector_at(builder, moved(builder, address, k, fetched_step or b_step), lanes)
        fetch(builder, line, is_written=False, level=level)
    for (a, b), one in zip(pairs, sums, strict=True):  # LLVM reads what pairs share once
        pointer = builder.inttoptr(moved(builder, a, k, a_step), FLOAT.as_pointer())
        factor = repeated(builder, builder.load(pointer, align=4), lanes)
        column = builder.load(vector_at(builder, moved(builder, b, k, b_step), lanes), align=4)
        then.append(multiply_add(builder, factor, column, one))
    following = builder.add(k, INDEX(1))
    builder.cbranch(builder.icmp_unsigned("<", following, count), loop, after)
    k.add_incoming(INDEX(0), start)
    k.add_incoming(following, loop)

    builder.position_at_end(after)
    ends = [builder.phi(vector) for _ in pairs]
    for phis in (sums, ends):
        for phi, later in zip(phis, then, strict=True):
            phi.add_incoming(zeros, start)
            phi.add_incoming(later, loop)
    return ends


def fetch(builder: ir.IRBuilder, pointer: ir.Value, *, is_written: bool, level: int) -> None:
    """Ask for memory that is needed later.

    level: 3 into all caches, 2 into the second and those behind it.
    """
    byte = ir.IntType(8).as_pointer()
    function = declare(builder.module, "llvm.prefetch.p0i8", [byte, BITS, BITS, BITS])
    hints = (BITS(int(is_written)), BITS(level), BITS(1))  # 1: data
    builder.call(function, [builder.bitcast(pointer, byte), *hints])


@compile_outer
def add_product(out, out_row, a, a_row, a_step, b, b_step, count, rows, columns):
    """Add to out[r, c] the sum of a[r, k] * b[k, c] over k < count; columns: a multiple of 8."""
    lanes, pair = _U(LANES), _U(2 * LANES)
    done = _U(0)
    while HAS_AVX512 and done + pair <= columns:
        _two_blocks(out, out_row, a, a_row, a_step, b, b_step, count, rows)
        out += pair * NUMBER
        b += pair * NUMBER
        done += pair
    while columns - done >= lanes:
        _one_block(out, out_row, a, a_row, a_step, b, b_step, count, rows)
        out += lanes * NUMBER
        b += lanes * NUMBER
        done += lanes
    if done < columns:
        _half_block(out, out_row, a, a_row, a_step, b, b_step, count, rows)
