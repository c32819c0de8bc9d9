"""Selects rows of a tensor, some of them often, and sums their gradients in a fixed order.

Legend: N = rows, M = rows that are asked for, W = width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


def select_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Select rows [N, W] by index [M] -> [M, W]; the gradient has the same bits in every run.

    The backward pass of `rows[index]` adds on a CPU from several threads, so that a row that is
    selected three times has its gradient summed in whatever order the threads come.
    """
    out: Tensor = _SelectRows.apply(rows, index)
    return out


class _SelectRows(Function):
    @staticmethod
    def forward(ctx: FunctionContext, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = rows.shape
        return rows.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        summed = grad.new_zeros(ctx.shape)
        if grad.device.type == "cpu":
            return summed.index_add_(0, index, grad), None  # row after row
        return summed.index_put_((index,), grad, accumulate=True), None  # CUDA sorts them first
