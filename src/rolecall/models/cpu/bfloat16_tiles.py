"""Multiplies matrices of bfloat16 numbers inside numba's loops, and sums up in float32.

Two numbers that are multiplied one after the other stand side by side in the 4 bytes of a pair, in
states as in weights. So pairs are laid out and counted as float32 numbers are, by `tiles` and
`tiled_products`. A product of two bfloat16 numbers is exact in float32.

AMX multiplies 16 rows by 16 columns in one instruction. Where there is none, vectors of pairs are
multiplied by AVX512-BF16, and else as float32 numbers. Each sum is added up in order, whatever is
computed beside it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.parallel import in_parallel
from rolecall.models.cpu.tiles import (
    BLOCK,
    fetch,
    fused_multiply_add,
    has_feature,
    make_block_product,
)
from rolecall.models.cpu.vectors import BITS, INDEX, LANES, declare, make_function, moved

_U = np.uintp
FLOAT32, VECTORS, AMX = _U(0), _U(1), _U(2)  # ways to multiply; the last two take pairs
SIDE = 16  # rows and pairs of one of AMX's tiles
AHEAD = 128  # lines of 64 bytes that weights are asked for ahead
STEP = 2 * SIDE  # numbers that AMX multiplies at once: pairs are filled up with zeros to these
HAS_PAIR_PRODUCTS = has_feature("avx512bf16")
HAS_AMX = has_feature("amx-tile") and has_feature("amx-bf16")
BYTE = ir.IntType(8)
BYTES = BYTE.as_pointer()


class _BFloat16(ir.Type):
    """LLVM's type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


@cache
def bfloat16_way() -> np.uintp:
    """Return the fastest way to multiply pairs that this processor and its system have."""
    # A process must ask the system for AMX's registers, which PyTorch does.
    return AMX if HAS_AMX and torch.cpu._init_amx() else VECTORS


def _multiply_pairs(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, total: ir.Value
) -> ir.Value:
    """Add the products of both numbers of each pair to `total`."""
    if HAS_PAIR_PRODUCTS and total.type.count == LANES:
        kind = ir.VectorType(_BFloat16(), 2 * LANES)
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        function = declare(builder.module, name, [total.type, kind, kind], total.type)
        return builder.call(function, [total, *(builder.bitcast(v, kind) for v in (first, second))])
    for widen in (_first_numbers, _second_numbers):
        total = fused_multiply_add(builder, widen(builder, first), widen(builder, second), total)
    return total


def _first_numbers(builder: ir.IRBuilder, pairs: ir.Value) -> ir.Value:
    """Return the first numbers of pairs as float32, whose upper half a bfloat16 is."""
    words = ir.VectorType(BITS, pairs.type.count)
    bits = builder.shl(builder.bitcast(pairs, words), words([16] * words.count))
    return builder.bitcast(bits, pairs.type)


def _second_numbers(builder: ir.IRBuilder, pairs: ir.Value) -> ir.Value:
    words = ir.VectorType(BITS, pairs.type.count)
    bits = builder.and_(builder.bitcast(pairs, words), words([0xFFFF0000] * words.count))
    return builder.bitcast(bits, pairs.type)


_by_vectors = make_block_product("rolecall_pairs", _multiply_pairs)


def _call(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> None:
    function = declare(builder.module, f"llvm.x86.{name}", [value.type for value in arguments])
    builder.call(function, arguments)


def _by_amx_body(
    builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
    b: ir.Value, count: ir.Value, rows: ir.Value,
) -> None:  # fmt: skip
    """Add to out[r, c] the products of a[r, k] and b[k, c] for BLOCK columns c.

    Two tiles of rows by two of columns are summed up at once, so each tile is loaded for two
    products.
    """
    memory = cgutils.alloca_once(builder, ir.ArrayType(BYTE, 64))
    last = builder.udiv(builder.sub(rows, INDEX(1)), INDEX(2 * SIDE))

    def add_tiles(number: ir.Value, *, is_double: bool, fetches: bool) -> None:
        first = builder.mul(number, INDEX(2 * SIDE))
        _add_tiles(
            builder, moved(builder, out, first, out_row), out_row, moved(builder, a, first, a_row),
            a_row, b, count, is_double=is_double, fetches=fetches,
        )  # fmt: skip

    with builder.if_then(builder.icmp_unsigned(">", last, INDEX(0))):
        _configure(builder, memory, INDEX(SIDE), INDEX(SIDE))
        with cgutils.for_range(builder, last, intp=INDEX) as loop:
            add_tiles(loop.index, is_double=True, fetches=False)
    rest = builder.sub(rows, builder.mul(last, INDEX(2 * SIDE)))
    is_double = builder.icmp_unsigned(">", rest, INDEX(SIDE))
    with builder.if_else(is_double) as (then, otherwise):
        with then:
            _configure(builder, memory, INDEX(SIDE), builder.sub(rest, INDEX(SIDE)))
            add_tiles(last, is_double=True, fetches=True)
        with otherwise:
            _configure(builder, memory, rest, rest)
            add_tiles(last, is_double=False, fetches=True)
    _call(builder, "tilerelease")


def _configure(builder: ir.IRBuilder, memory: ir.Value, upper: ir.Value, lower: ir.Value) -> None:
    """Set the sizes of AMX's eight tiles, each of 64 bytes a row, and fill them with zeros.

    Tiles 0 to 3 hold sums, of the upper rows and the lower ones; 4 and 5 states; 6 and 7 weights.
    """

    def set_value(index: int, value: ir.Value) -> None:
        pointer = cgutils.gep_inbounds(builder, memory, 0, index)
        builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=1)

    builder.store(memory.type.pointee([0] * 64), memory)
    set_value(0, BYTE(1))  # the only palette
    for tile, rows in enumerate((upper, upper, lower, lower, upper, lower, *[INDEX(SIDE)] * 2)):
        set_value(16 + 2 * tile, ir.IntType(16)(64))
        set_value(48 + tile, builder.trunc(rows, BYTE))
    _call(builder, "ldtilecfg", builder.bitcast(memory, BYTES))


def _add_tiles(
    builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, a: ir.Value, a_row: ir.Value,
    b: ir.Value, count: ir.Value, *, is_double: bool, fetches: bool,
) -> None:  # fmt: skip
    """Add the products of one or two tiles of rows and two of columns to `out`.

    `fetches`: ask for weights ahead. AMX's loads alone read memory at two thirds of its speed.
    """

    def pointer(address: ir.Value, tiles: int) -> ir.Value:
        return builder.inttoptr(builder.add(address, INDEX(64 * tiles)), BYTES)

    def load(tile: int, address: ir.Value, row: ir.Value, *, tiles: int = 0) -> None:
        stride = builder.shl(row, INDEX(2))
        _call(builder, "tileloadd64", BYTE(tile), pointer(address, tiles), stride)

    lines = [out, moved(builder, out, INDEX(SIDE), out_row)][: 1 + is_double]
    sums = [(2 * i + c, line, c) for i, line in enumerate(lines) for c in range(2)]
    for tile, line, c in sums:
        load(tile, line, out_row, tiles=c)
    with cgutils.for_range(builder, builder.udiv(count, INDEX(SIDE)), intp=INDEX) as loop:
        k = builder.mul(loop.index, INDEX(SIDE))
        states, weights = moved(builder, a, k, INDEX(1)), moved(builder, b, k, INDEX(BLOCK))
        for line in range(STEP if fetches else 0):
            fetch(builder, pointer(weights, AHEAD + line), is_written=False, level=2)
        for i in range(len(lines)):
            load(4 + i, moved(builder, states, INDEX(SIDE * i), a_row), a_row)
        for c in range(2):
            load(6 + c, weights, INDEX(BLOCK), tiles=c)
            for i in range(len(lines)):
                _call(builder, "tdpbf16ps", BYTE(2 * i + c), BYTE(4 + i), BYTE(6 + c))
    for tile, line, c in sums:
        stride = builder.shl(out_row, INDEX(2))
        _call(builder, "tilestored64", BYTE(tile), pointer(line, c), stride)


_by_amx = make_function("rolecall_amx_pairs", [types.uintp] * 7, _by_amx_body)


@compile_outer
def add_pairs(way, out, out_row, a, a_row, b, count, rows):
    """Add to out[r, c] the products of all numbers of a[r, k] and b[k, c], as `tiles.add_block`.

    a and b hold pairs, k < count, which is a multiple of `SIDE`.
    """
    if HAS_AMX and way == AMX:  # without AMX it is not compiled
        _by_amx(out, out_row, a, a_row, b, count, rows)
        return
    _by_vectors(out, out_row, a, a_row, b, count, rows)


@compile_inner(forceinline=True)
def count_pairs(numbers):
    """Return the pairs of so many numbers, filled up to a multiple of `SIDE`."""
    return (_U(numbers) + _U(STEP - 1)) // _U(STEP) * _U(SIDE)


@compile_inner(forceinline=True)
def _round(bits):
    """Return the bits of a float32 number rounded to bfloat16, half to even, in the upper half."""
    is_nan = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    up = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (bits | np.uint32(0x400000) if is_nan else up) & np.uint32(0xFFFF0000)


@compile_inner
def _round_row(row, x, width, out):
    pairs, start = count_pairs(width), row * width
    for i in range(width // _U(2)):
        first = _round(x[start + _U(2) * i]) >> np.uint32(16)
        out[row * pairs + i] = first | _round(x[start + _U(2) * i + _U(1)])
    done = width // _U(2)
    if width % _U(2) != _U(0):
        out[row * pairs + done] = _round(x[start + width - _U(1)]) >> np.uint32(16)
        done += _U(1)
    for i in range(done, pairs):
        out[row * pairs + i] = np.uint32(0)


@compile_outer
def round_to_pairs(x, width, out):
    """Round x [N, width] in float32 to pairs out [N, count_pairs(width)]."""
    arguments = (x.view(np.uint32), _U(width), out.view(np.uint32))
    in_parallel(_round_row, _U(len(x)) // _U(width), arguments)


def to_pairs(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [O, I] in bfloat16 as pairs [O, count_pairs(I)], typed as float32."""
    missing = -weight.shape[1] % STEP
    if missing:
        weight = torch.nn.functional.pad(weight, (0, missing))
    return weight.contiguous().view(torch.float32)
