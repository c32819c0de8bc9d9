"""Computes exponentials and the largest number of a row inside numba's loops."""

from __future__ import annotations

from collections.abc import Sequence
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
    LANES,
    VECTOR,
    add,
    declare,
    make_function,
    multiply,
    over_vectors,
    read,
    reduce,
    repeated,
    subtract,
    write,
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
    shifted = multiply(builder, add(builder, whole, number(127.0)), number(2.0**23))
    scale = builder.bitcast(builder.fptosi(shifted, whole_kind), kind)
    for summand in (_LN2_HIGH, _LN2_LOW):
        x = builder.call(fma, [whole, number(-summand), x])
    y = number(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        y = builder.call(fma, [y, x, number(factor)])
    y = builder.call(fma, [y, multiply(builder, x, x), x])
    return multiply(builder, add(builder, y, number(1.0)), scale)


@compile_inner(forceinline=True)
def exponentials(scores, s, length, most):
    """Turn scores[s : s + length] into exp(scores - most); return their sum."""
    return _exponentials(np.uintp(scores.ctypes.data) + s * NUMBER, length, most)


# Both are written by hand: LLVM makes no vector code of a loop in which NaN has a meaning, and of
# other loops it computes the last numbers, up to 63 of them, one at a time.


def _write_largest(builder: ir.IRBuilder, start: ir.Value, count: ir.Value) -> ir.Value:
    least = float("-inf")
    best = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [least] * LANES))

    def keep_larger(new: ir.Value, old: ir.Value) -> ir.Value:
        return builder.select(builder.fcmp_ordered(">", new, old), new, old)

    for first, mask in over_vectors(builder, count):
        new = read(builder, start, first, mask, others=least)
        builder.store(keep_larger(new, builder.load(best)), best)
    return reduce(builder, builder.load(best), keep_larger)


def _write_exponentials(
    builder: ir.IRBuilder, start: ir.Value, count: ir.Value, most: ir.Value
) -> ir.Value:
    most = repeated(builder, most)
    none = ir.Constant(VECTOR, [0.0] * LANES)
    total = cgutils.alloca_once_value(builder, none)
    for first, mask in over_vectors(builder, count):
        new = _exp(builder, subtract(builder, read(builder, start, first, mask), most))
        write(builder, new, start, first, mask)
        new = new if mask is None else builder.select(mask, new, none)
        builder.store(add(builder, builder.load(total), new), total)
    return reduce(builder, builder.load(total), partial(add, builder))


largest = make_function(
    "rolecall_largest", [types.uintp, types.uintp], _write_largest, result=types.float32
)
"""Return the largest of so many float32 numbers at an address, ignoring NaN; minus infinity if
there is none."""
_exponentials = make_function(
    "rolecall_exponentials", [types.uintp, types.uintp, types.float32], _write_exponentials,
    result=types.float32,
)  # fmt: skip
