"""Computes exponentials and the largest number of a row inside numba's loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rolecall.models.cpu.compiled import compile_inner
from rolecall.models.cpu.vectors import (
    BITS,
    FLOAT,
    IN_ORDER,
    INDEX,
    LANES,
    declare,
    define,
    moved,
    repeated,
    vector_at,
)

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature


NUMBER = np.uintp(4)  # bytes of a float32 number
_F = np.float32
MATH = {"reassoc", "contract", "nsz", "arcp"}  # infinities and NaN keep their meaning
# For loops that add nothing up. numba runs a kernel that it has just compiled as it was optimised
# once, and one from its cache as it was optimised twice; sums of three factors that LLVM may
# reorder then had other bits, so that a first run differed from all later ones. For the same reason
# inner functions are inlined by force: as symbols, the first of several versions would be taken.
# A sum of two products has no flags at all: it could be fused in two ways, and of a loop with
# vectors and one without, which may round otherwise, LLVM takes one by where the arrays lie.
EACH = {"contract", "nsz"}
DIVIDES = "numpy"  # division by 0 is infinity; a loop that could raise is no vector code
LEAST = _F(-87.0)  # exp of less is 0 in float32
_LOG2_E = _F(1.44269504)
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
_POLYNOMIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_VECTOR = ir.VectorType(FLOAT, LANES)


@intrinsic
def exp(typing, x):
    """Return exp(x) for x between -87 and 87; outside, that of the nearer bound. NaN stays."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        return _exp(builder, given[0])

    return types.float32(types.float32), generate


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Compute exp(x) = 2 ** whole * p(rest) of a number or a vector.

    p is the polynomial of Cephes' expf: relative error below 2e-7.
    """
    kind = x.type
    lanes = kind.count if isinstance(kind, ir.VectorType) else 0
    name = f"v{lanes}f32" if lanes else "f32"
    whole_kind = ir.VectorType(BITS, lanes) if lanes else BITS

    def number(value: float | np.float32) -> ir.Constant:
        rounded = float(_F(value))
        return ir.Constant(kind, [rounded] * lanes if lanes else rounded)

    fma = declare(builder.module, f"llvm.fma.{name}", [kind] * 3, kind)
    floor = declare(builder.module, f"llvm.floor.{name}", [kind], kind)
    low, high = number(LEAST), number(-LEAST)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
    whole = builder.call(floor, [builder.call(fma, [x, number(_LOG2_E), number(0.5)])])
    shifted = builder.fadd(whole, number(127.0), flags=IN_ORDER)
    shifted = builder.fmul(shifted, number(2.0**23), flags=IN_ORDER)
    scale = builder.bitcast(builder.fptosi(shifted, whole_kind), kind)
    for summand in (_LN2_HIGH, _LN2_LOW):
        x = builder.call(fma, [whole, number(-summand), x])
    y = number(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        y = builder.call(fma, [y, x, number(factor)])
    y = builder.call(fma, [y, builder.fmul(x, x, flags=IN_ORDER), x])
    return builder.fmul(builder.fadd(y, number(1.0), flags=IN_ORDER), scale, flags=IN_ORDER)


@compile_inner(forceinline=True)
def exponentials(scores, s, length, most):
    """Turn scores[s : s + length] into exp(scores - most); return their sum."""
    return _exponentials(np.uintp(scores.ctypes.data) + s * NUMBER, length, most)


@intrinsic
def _exponentials(typing, numbers, count, most):
    """Turn `count` float32 numbers at an address into exp(number - most); return their sum."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        return builder.call(_sum_function(builder.module), given)

    return types.float32(types.uintp, types.uintp, types.float32), generate


@intrinsic
def largest(typing, numbers, count):
    """Return the largest of `count` float32 numbers at an address, ignoring NaN.

    Minus infinity if there is none.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        return builder.call(_largest_function(builder.module), given)

    return types.float32(types.uintp, types.uintp), generate


# Both are written by hand: LLVM makes no vector code of a loop in which NaN has a meaning, and of
# other loops it computes the last numbers, up to 63 of them, one at a time.


def _largest_function(module: ir.Module) -> ir.Function:
    function = declare(module, "rolecall_largest", [INDEX, INDEX], FLOAT)
    if not function.is_declaration:
        return function
    builder = define(function)
    least = ir.Constant(_VECTOR, [float("-inf")] * LANES)
    best = cgutils.alloca_once_value(builder, least)

    def keep_larger(new: ir.Value, old: ir.Value) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">", new, old), new, old)

    for address, mask in _blocks(builder, *function.args):
        new = _load(builder, address, mask, least)
        builder.store(keep_larger(new, builder.load(best)), best)
    builder.ret(_reduce(builder, builder.load(best), keep_larger))
    return function


def _sum_function(module: ir.Module) -> ir.Function:
    function = declare(module, "rolecall_exponentials", [INDEX, INDEX, FLOAT], FLOAT)
    if not function.is_declaration:
        return function
    builder = define(function)
    start, count, most = function.args
    most = repeated(builder, most)
    none = ir.Constant(_VECTOR, [0.0] * LANES)
    total = cgutils.alloca_once_value(builder, none)
    for address, mask in _blocks(builder, start, count):
        number = _load(builder, address, mask, none)
        new = _exp(builder, builder.fsub(number, most, flags=IN_ORDER))
        _store(builder, new, address, mask)
        new = new if mask is None else builder.select(mask, new, none)
        builder.store(builder.fadd(builder.load(total), new, flags=IN_ORDER), total)
    add = partial(builder.fadd, flags=IN_ORDER)
    builder.ret(_reduce(builder, builder.load(total), add))
    return function


def _blocks(
    builder: ir.IRBuilder, start: ir.Value, count: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value | None]]:
    """Yield twice, to write the body of a loop over LANES numbers, and what follows it for the
    rest: the address of a vector, and which of its numbers there are (None: all)."""
    with cgutils.for_range(builder, builder.udiv(count, INDEX(LANES)), intp=INDEX) as loop:
        yield moved(builder, start, loop.index, INDEX(LANES)), None
    rest = builder.urem(count, INDEX(LANES))
    with builder.if_then(builder.icmp_unsigned("!=", rest, INDEX(0))):
        address = moved(builder, start, builder.sub(count, rest), INDEX(1))
        limit = repeated(builder, builder.trunc(rest, BITS))
        numbers = ir.Constant(ir.VectorType(BITS, LANES), list(range(LANES)))
        yield address, builder.icmp_unsigned("<", numbers, limit)


def _load(
    builder: ir.IRBuilder, address: ir.Value, mask: ir.Value | None, others: ir.Value
) -> ir.Value:
    """Read a vector, whose numbers that are not there are those of `others`."""
    pointer = vector_at(builder, address)
    if mask is None:
        return builder.load(pointer, align=4)
    name = f"llvm.masked.load.v{LANES}f32.p0v{LANES}f32"
    load = declare(builder.module, name, [pointer.type, BITS, mask.type, _VECTOR], _VECTOR)
    return builder.call(load, [pointer, BITS(4), mask, others])


def _store(
    builder: ir.IRBuilder, vector: ir.Value, address: ir.Value, mask: ir.Value | None
) -> None:
    pointer = vector_at(builder, address)
    if mask is None:
        builder.store(vector, pointer, align=4)
        return
    name = f"llvm.masked.store.v{LANES}f32.p0v{LANES}f32"
    store = declare(builder.module, name, [_VECTOR, pointer.type, BITS, mask.type])
    builder.call(store, [vector, pointer, BITS(4), mask])


def _reduce(
    builder: ir.IRBuilder, vector: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Join the numbers of a vector by halves."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        halves = [
            builder.shuffle_vector(vector, vector, ir.VectorType(BITS, lanes)([*half]))
            for half in (range(lanes), range(lanes, 2 * lanes))
        ]
        vector = join(*halves)
    return builder.extract_element(vector, BITS(0))
