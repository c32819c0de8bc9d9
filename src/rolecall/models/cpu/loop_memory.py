"""Makes arrays in numba's loops without references to count: of memory, or of an address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

if TYPE_CHECKING:
    import numpy as np
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature
    from numpy.typing import NDArray


LINE = 64  # bytes of a cache line, where an array begins
_WORD, _BYTE = ir.IntType(64), ir.IntType(8)
_ADDRESS = _BYTE.as_pointer()


def _taking(*, zeros: bool) -> Callable[[np.uintp, type[np.float32]], NDArray[np.float32]]:
    """Return a function for numba: (count, kind) -> an array of `count` numbers."""

    def take(typing, count, kind):
        array = types.Array(kind.dtype, 1, "C")

        def generate(
            context: BaseContext,
            builder: ir.IRBuilder,
            signature: Signature,
            given: Sequence[ir.Value],
        ) -> ir.Value:
            size = context.get_abi_sizeof(context.get_data_type(array.dtype))
            length = builder.mul(given[0], _WORD(size))
            malloc = _named(builder, "malloc", ir.FunctionType(_ADDRESS, [_WORD]))
            whole = builder.call(malloc, [builder.add(length, _WORD(LINE))])
            with builder.if_then(cgutils.is_null(builder, whole), likely=False):
                context.call_conv.return_user_exc(builder, MemoryError, ())
            # Its address is noted in front of the array: there is room, as it is a multiple of 16.
            address = builder.ptrtoint(whole, _WORD)
            start = builder.and_(builder.add(address, _WORD(LINE)), _WORD(-LINE))
            note = builder.inttoptr(builder.sub(start, _WORD(8)), _WORD.as_pointer())
            builder.store(address, note)
            if zeros:
                cgutils.memset(builder, builder.inttoptr(start, _ADDRESS), length, 0)
            return _array_at(context, builder, array, start, given[0])

        return array(types.uintp, kind), generate

    return intrinsic(take)


taken = _taking(zeros=False)
"""`taken(count, np.float32)`: numbers with any values, until `give_back`. Raises MemoryError."""
zeros = _taking(zeros=True)


@intrinsic
def give_back(typing, array):
    """Free an array; nothing may read it any more."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        data = make_array(array)(context, builder, given[0]).data
        start = builder.ptrtoint(data, _WORD)
        note = builder.inttoptr(builder.sub(start, _WORD(8)), _WORD.as_pointer())
        free = _named(builder, "free", ir.FunctionType(ir.VoidType(), [_ADDRESS]))
        builder.call(free, [builder.inttoptr(builder.load(note), _ADDRESS)])
        return context.get_dummy_value()

    return types.void(array), generate


@intrinsic
def view(typing, start, count, kind):
    """Return the array of `count` numbers that begins at this address."""
    array = types.Array(kind.dtype, 1, "C")

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        return _array_at(context, builder, array, given[0], given[1])

    return array(types.uintp, types.uintp, kind), generate


def _array_at(
    context: BaseContext, builder: ir.IRBuilder, kind: types.Array, start: ir.Value, count: ir.Value
) -> ir.Value:
    number, array = context.get_data_type(kind.dtype), make_array(kind)(context, builder)
    size = _WORD(context.get_abi_sizeof(number))
    populate_array(
        array, data=builder.inttoptr(start, number.as_pointer()), shape=[count], strides=[size],
        itemsize=size, meminfo=None,
    )  # fmt: skip
    return array._getvalue()


def _named(builder: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    return cgutils.get_or_insert_function(builder.module, kind, name)
