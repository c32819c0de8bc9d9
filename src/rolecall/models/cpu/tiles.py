"""Multiplies small matrices inside numba's loops as fast as the processor can.

LLVM makes good vector code of a plain loop, but keeps no sums in registers across it. Here they
are: a tile of 4 rows by 32 columns of sums (2 where vectors are short) is held in registers while
the loop runs over what is added up, so that loads are few. Each sum is added up in order, by fused
multiply-adds, whatever tile it stands in, and then added to what stands in its place: so results do
not depend on what is computed beside them.

Arrays are given as addresses and strides as numbers, all of them unsigned: out[r, c] stands
out_row * r + c numbers behind out, a[r, k] stands a_row * r + a_step * k behind a, and b[k, c]
stands b_step * k + c behind b. numba frees an array of which only the address is still used;
what `scratch.taken` gives stays until it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.elementary import NUMBER

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature


LANES = 16  # float32 numbers of a vector: AVX-512's; LLVM splits it where vectors are shorter
_U = np.uintp
_INDEX, _FLOAT = ir.IntType(64), ir.FloatType()


def _product(blocks: int, lanes: int) -> Callable[..., None]:
    """Return a function for numba, of that many blocks of columns, which may stand apart.

    out[r, out_block * i + c] += sum of a[r, k] * b[k, b_block * i + c] over k < count, for all
    r < rows, c < lanes, i < blocks.
    """

    def product(  # its body is in LLVM's language
        typing, out, out_row, out_block, a, a_row, a_step, b, b_block, b_step, count, rows
    ):
        signature = types.void(*[types.uintp] * 11)

        def generate(
            context: BaseContext,
            builder: ir.IRBuilder,
            signature: Signature,
            given: Sequence[ir.Value],
        ) -> ir.Value:
            builder.call(_function(builder.module, blocks, lanes), given)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(product)


two_blocks = _product(2, LANES)
one_block = _product(1, LANES)
_half_block = _product(1, LANES // 2)


def _function(module: ir.Module, blocks: int, lanes: int) -> ir.Function:
    """Return the compiled function; callers do not inline it, which would take LLVM seconds."""
    kind = ir.FunctionType(ir.VoidType(), [_INDEX] * 11)
    function = cgutils.get_or_insert_function(module, kind, f"rolecall_product_{blocks}_{lanes}")
    if function.is_declaration:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block())
        out, out_row, out_block, a, a_row, *others, rows = function.args
        # As many sums as there are registers for: an addition takes some steps, and others wait.
        most = 4 if blocks == 1 or has_avx512() else 2
        done = builder.and_(rows, _INDEX(-most))

        def tile(first: ir.Value, number: int) -> None:
            places = _moved(builder, out, first, out_row), _moved(builder, a, first, a_row)
            operands = (places[0], out_row, out_block, places[1], a_row, *others)
            _tile(builder, *operands, rows=number, blocks=blocks, lanes=lanes)

        with cgutils.for_range(builder, builder.udiv(rows, _INDEX(most)), intp=_INDEX) as loop:
            tile(builder.mul(loop.index, _INDEX(most)), most)
        for number in (2, 1)[-most // 2 :]:
            some = builder.and_(rows, _INDEX(number))
            with builder.if_then(builder.icmp_unsigned("!=", some, _INDEX(0))):
                tile(done, number)
            done = builder.add(done, some)
        builder.ret_void()
    return function


def has_avx512() -> bool:
    """Return whether numba compiles for a processor with vectors of LANES numbers."""
    features = config.CPU_FEATURES
    if features is not None:
        return "+avx512f" in features
    return bool(get_host_cpu_features().get("avx512f"))


def _moved(
    builder: ir.IRBuilder, address: ir.Value, number: ir.Value, stride: ir.Value
) -> ir.Value:
    return builder.add(address, builder.mul(number, builder.shl(stride, _INDEX(2))))


def _tile(
    builder: ir.IRBuilder, out: ir.Value, out_row: ir.Value, out_block: ir.Value, a: ir.Value,
    a_row: ir.Value, a_step: ir.Value, b: ir.Value, b_block: ir.Value, b_step: ir.Value,
    count: ir.Value, *, rows: int, blocks: int, lanes: int,
) -> None:  # fmt: skip
    vector = ir.VectorType(_FLOAT, lanes)
    add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f32"
    )

    def pointer(address: ir.Value, kind: ir.Type) -> ir.Value:
        return builder.inttoptr(address, kind.as_pointer())

    def everywhere(number: ir.Value) -> ir.Value:
        """Return a vector of one number."""
        single = builder.insert_element(vector(ir.Undefined), number, ir.IntType(32)(0))
        first = ir.VectorType(ir.IntType(32), lanes)([0] * lanes)
        return builder.shuffle_vector(single, vector(ir.Undefined), first)

    starts_a = [_moved(builder, a, _INDEX(r), a_row) for r in range(rows)]
    starts_b = [_moved(builder, b, _INDEX(i), b_block) for i in range(blocks)]
    lines = [_moved(builder, out, _INDEX(r), out_row) for r in range(rows)]
    places = [
        pointer(_moved(builder, line, _INDEX(i), out_block), vector)
        for line in lines
        for i in range(blocks)
    ]
    for target in places:
        _ask_for(builder, target, writes=True)
    start, zeros = builder.block, ir.Constant(vector, [0.0] * lanes)
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_unsigned("<", _INDEX(0), count), loop, after)

    builder.position_at_end(loop)
    k = builder.phi(_INDEX)
    sums = [builder.phi(vector) for _ in places]
    columns = [
        builder.load(pointer(_moved(builder, b_i, k, b_step), vector), align=4) for b_i in starts_b
    ]
    then = []
    for r, a_r in enumerate(starts_a):
        number = builder.load(pointer(_moved(builder, a_r, k, a_step), _FLOAT), align=4)
        factor = everywhere(number)
        for i, column in enumerate(columns):
            then.append(builder.call(add, [factor, column, sums[r * blocks + i]]))
    following = builder.add(k, _INDEX(1))
    builder.cbranch(builder.icmp_unsigned("<", following, count), loop, after)
    k.add_incoming(_INDEX(0), start)
    k.add_incoming(following, loop)

    builder.position_at_end(after)
    ends = [builder.phi(vector) for _ in places]
    for phis in (sums, ends):
        for phi, later in zip(phis, then, strict=True):
            phi.add_incoming(zeros, start)
            phi.add_incoming(later, loop)
    for target, end in zip(places, ends, strict=True):  # read now: the loop need not wait for it
        builder.store(builder.fadd(builder.load(target, align=4), end), target, align=4)


def _ask_for(builder: ir.IRBuilder, place: ir.Value, *, writes: bool) -> None:
    """Ask for memory that is written or read later: into all caches."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(fetch, [builder.bitcast(place, byte), flag(int(writes)), flag(3), flag(1)])


@intrinsic
def _prefetch(typing, address):
    """Ask for memory that is read soon."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Sequence[ir.Value]
    ) -> ir.Value:
        address = builder.inttoptr(given[0], ir.IntType(8).as_pointer())
        _ask_for(builder, address, writes=False)
        return context.get_dummy_value()

    return types.void(types.uintp), generate


@compile_inner(forceinline=True)
def prefetch(address, count):
    """Ask for `count` numbers from this address on, which are read soon."""
    for line in range(_U(0), count * NUMBER, _U(64)):
        _prefetch(address + line)


@compile_outer
def add_product(out, out_row, a, a_row, a_step, b, b_step, count, rows, columns):
    """Add to out[r, c] the sum of a[r, k] * b[k, c] over k < count; columns: a multiple of 8."""
    lanes, pair = _U(LANES), _U(2 * LANES)
    done = _U(0)
    while done + pair <= columns:
        two_blocks(out, out_row, lanes, a, a_row, a_step, b, lanes, b_step, count, rows)
        out += pair * NUMBER
        b += pair * NUMBER
        done += pair
    if columns - done >= lanes:
        one_block(out, out_row, lanes, a, a_row, a_step, b, lanes, b_step, count, rows)
        out += lanes * NUMBER
        b += lanes * NUMBER
        done += lanes
    if done < columns:
        _half_block(out, out_row, lanes, a, a_row, a_step, b, lanes, b_step, count, rows)
