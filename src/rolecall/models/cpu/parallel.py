"""Runs a loop of numba's in all threads, and compiles it once.

numba's own `prange` compiles the body of a loop three times: where it stands, as the function of a
thread, and with what calls that. The loops here are long, and a first run compiled for 54 seconds;
now it does for 23 (measured). The body is a function of its own, which is compiled into its caller,
and the loop over its calls is numba's, one for all bodies.

Each thread begins with a share of the loop, the same one in each loop of this length, whose data
its cache may hold. A thread whose share is done takes from the shares of others, where `prange`
waits for the slowest: attention over prompts took 1.03 to 1.06 times as long with it (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import get_num_threads, prange, types
from numba.core import cgutils, compiler
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from rolecall.models.cpu.compiled import compile_inner, kept_callback

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.ccallback import CFunc
    from numba.core.dispatcher import Dispatcher
    from numba.core.funcdesc import FunctionDescriptor
    from numba.core.typing.templates import Signature


_WORD, _FLAG = ir.IntType(64), ir.IntType(8)
_TASK = ir.FunctionType(ir.VoidType(), [_WORD, _WORD])  # of its arguments' address, and an index
SHARES = 32  # most that a loop is divided into
LINE = 64  # bytes of a processor's cache that threads cannot write at once
_LOOP = "rolecall_loop"
ROWS = 128  # that are computed at once, at most, so that they stay in the cache
_U = np.uintp


@intrinsic
def _call(typing, task, arguments, index):
    """Call the task at this address."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        builder.call(builder.inttoptr(given[0], _TASK.as_pointer()), given[1:])
        return context.get_dummy_value()

    return types.void(*[types.uintp] * 3), generate


@intrinsic
def count_threads(typing):
    """Return the number of threads of a loop; a caller of numba's own function is not kept."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        get_num_threads()  # which tells LLVM where the function is
        context.active_code_library._reload_init.add(get_num_threads)
        kind = ir.FunctionType(_WORD, [])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "get_num_threads"), []
        )

    return types.uintp(), generate


@compile_inner(forceinline=True)
def rows_at_once(number, threads):
    """Return how many of so many rows a block has: all threads get as many blocks."""
    each = _U(threads) * _U(ROWS)
    blocks = max(_U(1), (_U(number) + each - _U(1)) // each * _U(threads))
    rows = (_U(number) + blocks - _U(1)) // blocks
    return max(_U(1), (rows + _U(3)) // _U(4)) * _U(4)  # tiles have 4 or more


@intrinsic
def _counters(typing):
    """Return the address of SHARES numbers that are 0, each in a cache line of its own."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        room = cgutils.alloca_once(builder, ir.ArrayType(_WORD, SHARES * LINE // 8))
        for i in range(SHARES):
            builder.store(_WORD(0), cgutils.gep_inbounds(builder, room, 0, i * LINE // 8))
        return builder.ptrtoint(room, _WORD)

    return types.uintp(), generate


@intrinsic
def _increment(typing, address):
    """Add 1 to the number at this address, which threads share; return what it was."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        pointer = builder.inttoptr(given[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, _WORD(1), "monotonic")

    return types.uintp(types.uintp), generate


def _loop(task: int, arguments: int, count: int) -> None:
    threads = count_threads()
    shares = min(threads, np.uintp(SHARES))
    counters = _counters()
    for thread in prange(threads):
        for turn in range(shares):
            share = (np.uintp(thread) + np.uintp(turn)) % shares
            first, end = count * share // shares, count * (share + np.uintp(1)) // shares
            index = first
            while index < end:
                index = first + _increment(counters + share * np.uintp(LINE))
                if index < end:
                    _call(task, arguments, index)


@cache
def provide_loop() -> CFunc:
    """Compile the loop over calls, and tell LLVM where it is: before code that calls it is run."""
    compiled = kept_callback(_loop, (types.uintp,) * 3, parallel=True)
    add_symbol(_LOOP, compiled.address)
    return compiled  # kept for as long as the process lives


@intrinsic
def in_parallel(typing, body, count, arguments):
    """Call body(index, *arguments) for each index below `count`, in numba's threads.

    body: an `njit` function that returns nothing; arguments: a tuple. Raises MemoryError where a
    call raises.
    """
    kinds = (types.uintp, *arguments)

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        provide_loop()
        context.active_code_library._reload_init.add(provide_loop)  # when it is read from the cache
        compiled = _compiled(context, body.dispatcher, kinds)
        room = _stored(builder, [given[2], _FLAG(0)])  # the second: whether a call raised
        task = ir.Function(builder.module, _TASK, name=f"{compiled.mangled_name}.task")
        task.linkage = "internal"
        inside = ir.IRBuilder(task.append_basic_block())
        shared = inside.inttoptr(task.args[0], room.type)
        first = inside.load(cgutils.gep_inbounds(inside, shared, 0, 0))
        parts = [inside.extract_value(first, i) for i in range(len(arguments))]
        status, _ = context.call_conv.call_function(
            inside, context.declare_function(builder.module, compiled), types.none, kinds,
            [task.args[1], *parts],
        )  # fmt: skip
        with inside.if_then(status.is_error, likely=False):
            inside.store(_FLAG(1), cgutils.gep_inbounds(inside, shared, 0, 1))
        inside.ret_void()
        loop = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [_WORD] * 3), _LOOP
        )
        builder.call(loop, [builder.ptrtoint(x, _WORD) for x in (task, room)] + [given[1]])
        failed = builder.load(cgutils.gep_inbounds(builder, room, 0, 1))
        with builder.if_then(cgutils.is_not_null(builder, failed), likely=False):
            context.call_conv.return_user_exc(builder, MemoryError, ())
        return context.get_dummy_value()

    return types.void(body, types.uintp, arguments), generate


def _stored(builder: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    """Return the address of a structure of these values."""
    room = cgutils.alloca_once(builder, ir.LiteralStructType([value.type for value in values]))
    for index, value in enumerate(values):
        builder.store(value, cgutils.gep_inbounds(builder, room, 0, index))
    return room


def _compiled(
    context: BaseContext, body: Dispatcher, kinds: tuple[types.Type, ...]
) -> FunctionDescriptor:
    """Compile the body for these argument types into the current code; return its descriptor."""
    flags = compiler.Flags()
    cpu_target.options.parse_as_flags(flags, body.targetoptions)
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    result = compiler.compile_internal(
        cpu_target.typing_context, cpu_target.target_context, context.active_code_library,
        body.py_func, kinds, types.none, flags, {},
    )  # fmt: skip
    return result.fndesc
