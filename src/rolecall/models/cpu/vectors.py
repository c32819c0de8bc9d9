"""Makes functions for numba that are written in LLVM's language, and their loops and vectors.

Addresses and strides are unsigned numbers; a stride counts float32 numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature as Types

LANES = 16  # float32 numbers of a vector: AVX-512's; LLVM splits it where vectors are shorter
INDEX, BITS, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
# Flags of each addition and multiplication. numba gives the fast-math flags of a loop to all that
# have none, and LLVM would then reorder sums, in some of a function's versions.
IN_ORDER = ("nsz",)
VECTOR = ir.VectorType(FLOAT, LANES)


def make_function(
    name: str,
    arguments: Sequence[types.Type],
    write_body: Callable[..., ir.Value | None],
    *,
    result: types.Type = types.void,
) -> Callable[..., Any]:
    """Return a function for numba's loops, whose body `write_body` adds to each module once.

    `write_body` takes a builder and the arguments, and returns what the function returns.
    """

    def describe(typing, *_):
        def generate(
            context: BaseContext,
            builder: ir.IRBuilder,
            signature: Types,
            values: Sequence[ir.Value],
        ) -> ir.Value:
            kinds = [context.get_value_type(kind) for kind in arguments]
            returned = None if result is types.void else context.get_value_type(result)
            function = declare(builder.module, name, kinds, returned)
            if function.is_declaration:
                body = define(function)
                last = write_body(body, *function.args)
                body.ret_void() if last is None else body.ret(last)
            call = builder.call(function, values)
            return context.get_dummy_value() if returned is None else call

        return result(*arguments), generate

    described: Any = describe
    names = ["typing", *(f"argument_{number}" for number in range(len(arguments)))]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    described.__name__ = name
    described.__signature__ = Signature([Parameter(one, kind) for one in names])  # numba asks
    function: Callable[..., Any] = intrinsic(described)
    return function


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


def over_vectors(
    builder: ir.IRBuilder, count: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value | None]]:
    """Yield twice, to write the body of a loop over vectors, and what follows it for the rest.

    Each is where a vector begins, and which of its numbers there are (None: all).
    """
    with cgutils.for_range(builder, builder.udiv(count, INDEX(LANES)), intp=INDEX) as loop:
        yield builder.mul(loop.index, INDEX(LANES)), None
    rest = builder.urem(count, INDEX(LANES))
    with builder.if_then(builder.icmp_unsigned("!=", rest, INDEX(0))):
        limit = repeated(builder, builder.trunc(rest, BITS))
        numbers = ir.Constant(ir.VectorType(BITS, LANES), list(range(LANES)))
        yield builder.sub(count, rest), builder.icmp_unsigned("<", numbers, limit)


def read(
    builder: ir.IRBuilder,
    start: ir.Value,
    first: ir.Value,
    mask: ir.Value | None,
    *,
    others: float = 0.0,
) -> ir.Value:
    """Read the vector that begins at number `first` behind `start`.

    Numbers that are not there are `others`.
    """
    pointer = vector_at(builder, moved(builder, start, first, INDEX(1)))
    if mask is None:
        return builder.load(pointer, align=4)
    name = f"llvm.masked.load.v{LANES}f32.p0v{LANES}f32"
    load = declare(builder.module, name, [pointer.type, BITS, mask.type, VECTOR], VECTOR)
    return builder.call(load, [pointer, BITS(4), mask, ir.Constant(VECTOR, [others] * LANES)])


def write(
    builder: ir.IRBuilder, vector: ir.Value, start: ir.Value, first: ir.Value, mask: ir.Value | None
) -> None:
    """Write a vector to where `read` would read it."""
    pointer = vector_at(builder, moved(builder, start, first, INDEX(1)))
    if mask is None:
        builder.store(vector, pointer, align=4)
        return
    name = f"llvm.masked.store.v{LANES}f32.p0v{LANES}f32"
    store = declare(builder.module, name, [VECTOR, pointer.type, BITS, mask.type])
    builder.call(store, [vector, pointer, BITS(4), mask])


def reduce(
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


def add(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.fadd(first, second, flags=IN_ORDER)


def subtract(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    return builder.fsub(first, second, flags=IN_ORDER)


def multiply(builder: ir.IRBuilder, first: ir.Value, *others: ir.Value) -> ir.Value:
    """Multiply numbers or vectors, one after another."""
    for other in others:
        first = builder.fmul(first, other, flags=IN_ORDER)
    return first
