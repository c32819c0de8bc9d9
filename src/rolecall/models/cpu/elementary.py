"""Computes exponentials and the largest number of a row inside numba's loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rolecall.models.cpu.compiled import compile_inner

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


@intrinsic
def _as_float(typing, bits):
    """Return the float32 number with these bits."""

    def generate(context, builder, signature, given):
        return builder.bitcast(given[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@compile_inner(fastmath=EACH, forceinline=True)
def exp(x):
    """Compute exp(x) = 2 ** whole * p(rest) for x between -87 and 87; NaN stays.

    p is the polynomial of Cephes' expf: relative error below 2e-7.
    """
    x = LEAST if x < LEAST else x
    x = -LEAST if x > -LEAST else x
    whole = np.floor(x * _LOG2_E + _F(0.5))
    bits = np.int32((whole + _F(127.0)) * _F(8388608.0))
    x = x - whole * _LN2_HIGH - whole * _LN2_LOW
    y = _F(1.9875691500e-4) * x + _F(1.3981999507e-3)
    y = y * x + _F(8.3334519073e-3)
    y = y * x + _F(4.1665795894e-2)
    y = y * x + _F(1.6666665459e-1)
    y = y * x + _F(5.0000001201e-1)
    return (y * x * x + x + _F(1.0)) * _as_float(bits)


@compile_inner(fastmath=MATH, forceinline=True)
def exponentials(scores, s, length, most):
    """Turn scores[s : s + length] into exp(scores - most); return their sum."""
    total = _F(0.0)
    for t in range(length):
        scores[s + t] = exp(scores[s + t] - most)
        total += scores[s + t]
    return total


@intrinsic
def largest(typing, numbers, count):
    """Return the largest of `count` float32 numbers at an address, ignoring NaN.

    Minus infinity if there is none.
    """

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        return builder.call(_function(builder.module), given)

    return types.float32(types.uintp, types.uintp), generate


def _function(module: ir.Module) -> ir.Function:
    """Return the compiled function.

    It is written by hand, because LLVM makes no vector code of a loop in which NaN has a meaning.
    """
    index, number, lanes = ir.IntType(64), ir.FloatType(), 32
    vector = ir.VectorType(number, lanes)
    kind = ir.FunctionType(number, [index] * 2)
    function = cgutils.get_or_insert_function(module, kind, "rolecall_largest")
    if not function.is_declaration:
        return function
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    start, count = function.args
    least = float("-inf")

    def read(place: ir.Value, kind: ir.Type) -> ir.Value:
        address = builder.add(start, builder.mul(place, index(4)))
        return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)

    def keep(new: ir.Value, best: ir.Value) -> None:
        """Keep the larger number in `best`."""
        old = builder.load(best)
        builder.store(builder.select(builder.fcmp_ordered(">", new, old), new, old), best)

    side_by_side = cgutils.alloca_once_value(builder, ir.Constant(vector, [least] * lanes))
    best = cgutils.alloca_once_value(builder, ir.Constant(number, least))
    blocks = builder.udiv(count, index(lanes))
    with cgutils.for_range(builder, blocks, intp=index) as loop:
        keep(read(builder.mul(loop.index, index(lanes)), vector), side_by_side)
    done = builder.mul(blocks, index(lanes))
    with cgutils.for_range(builder, builder.sub(count, done), intp=index) as loop:
        keep(read(builder.add(done, loop.index), number), best)
    for lane in range(lanes):
        keep(builder.extract_element(builder.load(side_by_side), ir.IntType(32)(lane)), best)
    builder.ret(builder.load(best))
    return function
