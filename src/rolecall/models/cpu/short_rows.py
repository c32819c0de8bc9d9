"""Computes norms and rotations of single rows inside numba's loops, in vectors.

LLVM computes the last numbers of a loop one at a time, up to 63 of them: of a head of 32 numbers
that is all of them. Sums are added up in the same order on every processor.

All but counts and `eps` are addresses. Legend: D = numbers of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rolecall.models.cpu.vectors import (
    FLOAT,
    IN_ORDER,
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


def _sum_products(builder: ir.IRBuilder, rows: Sequence[ir.Value], count: ir.Value) -> ir.Value:
    """Sum the products of the numbers of two or three rows."""
    fma = declare(builder.module, f"llvm.fma.v{LANES}f32", [VECTOR] * 3, VECTOR)
    total = cgutils.alloca_once_value(builder, ir.Constant(VECTOR, [0.0] * LANES))
    for first, mask in over_vectors(builder, count):
        *others, last = (read(builder, row, first, mask) for row in rows)
        factors = [multiply(builder, *others), last, builder.load(total)]
        builder.store(builder.call(fma, factors), total)
    return reduce(builder, builder.load(total), partial(add, builder))


def _divide(builder: ir.IRBuilder, number: ir.Value, count: ir.Value) -> ir.Value:
    return builder.fdiv(number, builder.uitofp(count, FLOAT), flags=IN_ORDER)


def _scale(builder: ir.IRBuilder, x: ir.Value, count: ir.Value, eps: ir.Value) -> ir.Value:
    """Return 1 / the root of the mean square of a row, of which `eps` keeps it from 0."""
    square = _divide(builder, _sum_products(builder, [x, x], count), count)
    root = declare(builder.module, "llvm.sqrt.f32", [FLOAT], FLOAT)
    length = builder.call(root, [add(builder, square, eps)], fastmath=IN_ORDER)
    return builder.fdiv(FLOAT(1.0), length, flags=IN_ORDER)


def _write_norm(
    builder: ir.IRBuilder, x: ir.Value, weight: ir.Value, out: ir.Value, count: ir.Value,
    eps: ir.Value,
) -> None:  # fmt: skip
    scale = repeated(builder, _scale(builder, x, count, eps))
    for first, mask in over_vectors(builder, count):
        number, factor = (read(builder, row, first, mask) for row in (x, weight))
        write(builder, multiply(builder, number, scale, factor), out, first, mask)


def _write_norm_backward(
    builder: ir.IRBuilder, grad: ir.Value, x: ir.Value, weight: ir.Value, dx: ir.Value,
    d_weight: ir.Value, count: ir.Value, eps: ir.Value,
) -> None:  # fmt: skip
    one = _scale(builder, x, count, eps)
    along = _sum_products(builder, [grad, weight, x], count)
    pull = repeated(builder, _divide(builder, multiply(builder, along, one, one), count))
    scale = repeated(builder, one)
    for first, mask in over_vectors(builder, count):
        slope, number, factor, before = (
            read(builder, row, first, mask) for row in (grad, x, weight, d_weight)
        )
        pulled = multiply(builder, number, pull)
        change = subtract(builder, multiply(builder, slope, factor), pulled)
        write(builder, multiply(builder, change, scale), dx, first, mask)
        more = multiply(builder, slope, number, scale)
        write(builder, add(builder, before, more), d_weight, first, mask)


def _over_halves(
    builder: ir.IRBuilder, rows: Sequence[ir.Value], half: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value | None, list[tuple[ir.Value, ir.Value]]]]:
    """Yield as `over_vectors`, with the vectors of each row: of its lower and of its upper half."""
    for first, mask in over_vectors(builder, half):
        upper = builder.add(first, half)
        pairs = [(read(builder, row, first, mask), read(builder, row, upper, mask)) for row in rows]
        yield first, mask, pairs


def _write_rotation(
    builder: ir.IRBuilder, x: ir.Value, cos: ir.Value, sin: ir.Value, half: ir.Value
) -> None:
    times = partial(multiply, builder)
    for first, mask, pairs in _over_halves(builder, (x, cos, sin), half):
        (a, b), (cos_a, cos_b), (sin_a, sin_b) = pairs
        lower = subtract(builder, times(a, cos_a), times(b, sin_a))
        upper = add(builder, times(b, cos_b), times(a, sin_b))
        write(builder, lower, x, first, mask)
        write(builder, upper, x, builder.add(first, half), mask)


def _write_rotation_backward(
    builder: ir.IRBuilder, grad: ir.Value, cos: ir.Value, sin: ir.Value, dx: ir.Value,
    half: ir.Value,
) -> None:  # fmt: skip
    times = partial(multiply, builder)
    for first, mask, pairs in _over_halves(builder, (grad, cos, sin), half):
        (a, b), (cos_a, cos_b), (sin_a, sin_b) = pairs
        lower = add(builder, times(a, cos_a), times(b, sin_b))
        upper = subtract(builder, times(b, cos_b), times(a, sin_a))
        write(builder, lower, dx, first, mask)
        write(builder, upper, dx, builder.add(first, half), mask)


def _write_pulls(
    builder: ir.IRBuilder, weights: ir.Value, pulls: ir.Value, along: ir.Value, count: ir.Value
) -> None:
    along = repeated(builder, along)
    for first, mask in over_vectors(builder, count):
        weight, pull = (read(builder, row, first, mask) for row in (weights, pulls))
        weighed = multiply(builder, weight, subtract(builder, pull, along))
        write(builder, weighed, pulls, first, mask)


_A, _N = types.uintp, types.float32
sum_products = make_function(
    "rolecall_sum_products", [_A, _A, _A],
    lambda builder, x, y, count: _sum_products(builder, [x, y], count), result=_N,
)  # fmt: skip
"""(x, y, D): return the sum of x[d] * y[d]."""
normalize_row = make_function("rolecall_norm", [_A] * 4 + [_N], _write_norm)
"""(x, weight, out, D, eps): write the root mean square norm of x, times the weight, to out."""
normalize_row_backward = make_function(
    "rolecall_norm_backward", [_A] * 6 + [_N], _write_norm_backward
)
"""(grad, x, weight, dx, d_weight, D, eps): write x's gradient, and add the weight's to d_weight."""
rotate_row = make_function("rolecall_rotate", [_A] * 4, _write_rotation)
"""(x, cos, sin, D / 2): rotary position embedding of x, in place."""
rotate_row_backward = make_function("rolecall_rotate_backward", [_A] * 5, _write_rotation_backward)
"""(grad, cos, sin, dx, D / 2): write the gradient of what is rotated to dx."""
weigh_pulls = make_function("rolecall_weigh_pulls", [_A, _A, _N, _A], _write_pulls)
"""(weights, pulls, along, D): replace each pull by weight * (pull - along)."""
