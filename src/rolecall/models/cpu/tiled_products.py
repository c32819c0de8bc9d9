"""Multiplies states with a weight by tiles, columns in parallel: in float32, or in bfloat16.

The weight is laid out once, so that a tile reads what it needs of it in one stream. For few rows
this is faster than MKL's and oneDNN's products at all sizes, with vectors of 16 numbers and of 8
(AVX-512 and AVX2, measured), so it is not tried out. Weights in bfloat16 are laid out as pairs
(`bfloat16_tiles`), and states are rounded to the same.

Legend: N = rows of states, I / O = inputs and outputs of a weight; of pairs, I counts pairs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rolecall.models.cpu import kernels
from rolecall.models.cpu.bfloat16_tiles import (
    FLOAT32,
    add_pairs,
    bfloat16_way,
    count_pairs,
    round_to_pairs,
    to_pairs,
)
from rolecall.models.cpu.compiled import compile_inner, compile_outer
from rolecall.models.cpu.elementary import NUMBER
from rolecall.models.cpu.kernels import flat
from rolecall.models.cpu.loop_memory import give_back, zeros
from rolecall.models.cpu.parallel import in_parallel, rows_at_once
from rolecall.models.cpu.tiles import BLOCK, add_block, add_product

# A weight is laid out in pieces of this many inputs and outputs. The rows of a piece are read at
# the same time, so their memory is fetched at the same time, and each of them is read for long
# enough to be fetched ahead. One row after another took 3 to 5 times as long (measured).
RUN = 128
TOGETHER = 8
_U = np.uintp
_F = np.float32
LowRank = tuple[Tensor, Tensor, float]  # down [R, I], up [O, R], scaling: up @ down times it


@compile_inner
def _lay_out(block, weight, outputs, inputs, transposed, out):
    outputs, inputs, columns = _U(outputs), _U(inputs), _U(BLOCK)
    row, step = (_U(1), outputs) if transposed else (inputs, _U(1))
    first, to = block * columns, block * columns * inputs
    width = min(columns, outputs - first)
    for begin in range(_U(0), inputs, _U(RUN)):
        end = min(inputs, begin + _U(RUN))
        for few in range(_U(0), columns, _U(TOGETHER)):
            for i in range(begin, end):
                for c in range(few, few + _U(TOGETHER)):
                    number = weight[(first + c) * row + i * step] if c < width else _F(0.0)
                    out[to + i * columns + c] = number


@compile_outer
def lay_out(weight, outputs, inputs, transposed, out):
    """Lay out weight [O, I], or [I, O] if it is `transposed` -> [O / BLOCK, I, BLOCK].

    The last outputs are filled up with zeros.
    """
    arguments = (weight, outputs, inputs, transposed, out)
    in_parallel(_lay_out, (outputs + BLOCK - 1) // BLOCK, arguments)


@compile_inner(forceinline=True)
def _add(way, out, out_row, x, block, inputs, rows, width):
    if way == FLOAT32 and width == _U(BLOCK):
        add_block(out, out_row, x, inputs, block, inputs, rows)
    elif way == FLOAT32:
        add_product(out, out_row, x, inputs, _U(1), block, _U(BLOCK), inputs, rows, width)
    else:
        add_pairs(way, out, out_row, x, inputs, block, inputs, rows)


@compile_inner
def _multiply(block, x, weight, bias, inputs, outputs, way, fresh, start, rows, out):
    """Compute the columns of a block, of so many rows that begin at `start`."""
    columns = _U(BLOCK)
    at_x, at_weight, at_out = _U(x.ctypes.data), _U(weight.ctypes.data), _U(out.ctypes.data)
    first = block * columns
    width, to = min(columns, outputs - first), start * outputs + first
    if fresh or bias.shape[0] > 0:
        for r in range(rows):
            for c in range(width):
                old = _F(0.0) if fresh else out[to + r * outputs + c]
                new = bias[first + c] if bias.shape[0] > 0 else _F(0.0)
                out[to + r * outputs + c] = old + new
    at_rows, at_block = at_x + start * inputs * NUMBER, at_weight + first * inputs * NUMBER
    if width == columns or (way == FLOAT32 and width % _U(8) == _U(0)):
        _add(way, at_out + to * NUMBER, outputs, at_rows, at_block, inputs, rows, width)
    else:  # the last columns of a weight with an odd number of them
        apart = zeros(rows * columns, np.float32)
        _add(way, _U(apart.ctypes.data), columns, at_rows, at_block, inputs, rows, columns)
        for r in range(rows):
            for c in range(width):
                out[to + r * outputs + c] += apart[r * columns + c]
        give_back(apart)


@compile_inner(forceinline=True)
def _blocks(outputs):
    return (outputs + _U(BLOCK) - _U(1)) // _U(BLOCK)


@compile_inner
def _multiply_item(item, x, products, number, blocks, inputs, way, fresh, most):
    """Compute the columns of one block of one product for `most` rows."""
    start, block, p = item // blocks * most, item % blocks, _U(0)
    while p + _U(1) < number and block >= _blocks(products[p][2]):
        block -= _blocks(products[p][2])
        p += _U(1)
    weight, bias, outputs, out = products[p]
    rows = min(most, _U(x.shape[0]) // inputs - start)
    _multiply(block, x, weight, bias, inputs, outputs, way, fresh, start, rows, out)


@compile_inner
def multiply_rows(start, rows, x, product, inputs, way, fresh):
    """Compute all columns of so many rows that begin at `start`, in the calling thread.

    product: as `multiply_together` takes it.
    """
    weight, bias, outputs, out = product
    for block in range(_blocks(outputs)):
        _multiply(block, x, weight, bias, inputs, outputs, way, fresh, start, rows, out)


@compile_outer
def multiply_together(x, products, number, inputs, way, fresh):
    """Multiply x [N, I] by the weights of some products in one loop of all threads.

    way: FLOAT32, or how pairs are multiplied.

    products: three of (a weight that is laid out, its bias or an empty one, its outputs O, and
    out [N, O]), of which the first `number` are computed. A loop of its own for each product takes
    longer to begin and to end than a small product takes.

    Not `fresh`: a product is added to the numbers in its `out`.
    """
    rows, blocks = _U(len(x)) // _U(inputs), _U(0)
    for p in range(number):
        blocks += _blocks(products[p][2])
    most = rows_at_once(rows, 1)
    pieces = (rows + most - _U(1)) // most
    arguments = (x, products, _U(number), blocks, _U(inputs), way, fresh, most)
    in_parallel(_multiply_item, pieces * blocks, arguments)


@compile_outer
def multiply(x, weight, bias, inputs, outputs, way, fresh, out):
    """Compute out [N, O] = x [N, I] times the weight that is laid out, plus the bias if any.

    way: as `multiply_together` takes it.

    Not `fresh`: the product is added to the numbers in `out`.
    """
    product = (weight, bias, _U(outputs), out)
    multiply_together(x, (product, product, product), 1, inputs, way, fresh)


def allocate_tiles(outputs: int, inputs: int) -> np.ndarray:
    """Memory for a weight of this size that is laid out."""
    return flat(torch.empty(-(-outputs // BLOCK) * BLOCK * inputs))


def laid_out(
    weight: Tensor, *, transposed: bool = False, out: np.ndarray | None = None
) -> np.ndarray:
    """Lay out a float32 weight [O, I], or its transpose, as the tiles read it, in `out`."""
    inputs, outputs = weight.shape if transposed else reversed(weight.shape)
    out = allocate_tiles(outputs, inputs) if out is None else out
    lay_out(flat(weight.contiguous()), outputs, inputs, transposed, out)
    return out


class TiledProduct:
    """x @ weight.T + bias for states x, float32 in and out."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, low_rank: LowRank | None = None
    ) -> None:
        """Copy and lay out weight [O, I] in float32 or bfloat16, which x is then rounded to.

        `low_rank`: what is added to a weight in float32.
        """
        assert low_rank is None or weight.dtype == torch.float32, "it would be lost in rounding"
        self.source, self.low_rank = weight.detach(), low_rank
        self.num_outputs, self.num_inputs = weight.shape
        self.way = FLOAT32 if weight.dtype == torch.float32 else bfloat16_way()
        self.row = self.num_inputs if self.way == FLOAT32 else int(count_pairs(self.num_inputs))
        self._bias = None if bias is None else bias.detach()
        self.bias = np.zeros(0 if bias is None else len(bias), np.float32)
        self.laid_out = allocate_tiles(self.num_outputs, self.row)
        added = () if low_rank is None else low_rank[:2]
        self.sources = [t for t in (self.source, self._bias, *added) if t is not None]
        self.follow()

    def follow(self) -> None:
        """Copy the weight again, to where the copy lies."""
        kernels.use_threads()
        weight = self.source if self.way == FLOAT32 else to_pairs(self.source)
        if self.low_rank is not None:
            down, up, scaling = self.low_rank
            weight = torch.addmm(weight, up.detach(), down.detach(), alpha=scaling)
        laid_out(weight, out=self.laid_out)
        if self._bias is not None:
            self.bias[:] = flat(self._bias.float())

    def times(self, x: Tensor) -> Tensor:
        """Multiply x [N, I] by the weight -> [N, O]."""
        out = x.new_empty(len(x), self.num_outputs)
        self._multiply(x, out, fresh=True)
        return out

    def plus(self, x: Tensor, to: Tensor) -> Tensor:
        """Add the product to `to` [N, O], in place."""
        self._multiply(x, to, fresh=False)
        return to

    def _multiply(self, x: Tensor, out: Tensor, *, fresh: bool) -> None:
        kernels.use_threads()
        states = flat(x.contiguous())
        if self.way != FLOAT32:
            numbers, states = states, np.empty(len(x) * self.row, np.float32)
            round_to_pairs(numbers, self.num_inputs, states)
        multiply(
            states, self.laid_out, self.bias, self.row, self.num_outputs, self.way, fresh, flat(out)
        )
