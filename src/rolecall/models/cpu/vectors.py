"""Declares functions that are written in LLVM's language, and makes their vectors.

Addresses and strides are unsigned numbers; a stride counts float32 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils

LANES = 16  # float32 numbers of a vector: AVX-512's; LLVM splits it where vectors are shorter
INDEX, BITS, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
# Flags of each addition and multiplication. numba gives the fast-math flags of a loop to all that
# have none, and LLVM would then reorder sums, in some of a function's versions.
IN_ORDER = ("nsz",)


def declare(
    module: ir.Module, name: str, arguments: Sequence[ir.Type], result: ir.Type | None = None
) -> ir.Function:
    """Return the module's function of this name, which may have no body yet."""
    kind = ir.FunctionType(ir.VoidType() if result is None else result, arguments)
    return cgutils.get_or_insert_function(module, kind, name)


def define(function: ir.Function) -> ir.IRBuilder:
    """Begin the body of a function; callers do not inline it, which would take LLVM seconds."""
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    return ir.IRBuilder(function.append_basic_block())


def moved(builder: ir.IRBuilder, address: ir.Value, number: ir.Value, stride: ir.Value) -> ir.Value:
    """Return the address of the number that stands `number` times `stride` behind this one."""
    return builder.add(address, builder.mul(number, builder.shl(stride, INDEX(2))))


def vector_at(builder: ir.IRBuilder, address: ir.Value, lanes: int = LANES) -> ir.Value:
    """Return a pointer to a vector."""
    return builder.inttoptr(address, ir.VectorType(FLOAT, lanes).as_pointer())


def repeated(builder: ir.IRBuilder, number: ir.Value, lanes: int = LANES) -> ir.Value:
    """Return a vector of one number."""
    vector = ir.VectorType(number.type, lanes)(ir.Undefined)
    single = builder.insert_element(vector, number, BITS(0))
    return builder.shuffle_vector(single, vector, ir.VectorType(BITS, lanes)([0] * lanes))
