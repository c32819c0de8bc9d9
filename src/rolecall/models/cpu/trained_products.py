"""Multiplies in training with the products that are fastest on this processor.

A linear layer has three: its output, the gradient of its input and that of its weight. Each is
taken from oneDNN where a trial found that to be faster than PyTorch's own, which is MKL's.

Legend: N = rows of states, I / O = inputs and outputs of a weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Linear, Module

from rolecall.models.cpu.kernels import runs_on_numba
from rolecall.models.cpu.product_trials import ways_of_training
from rolecall.models.cpu.products import Way, multiply

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


LEAST_ROWS = 64  # with fewer the plain products are taken


def use_fastest(model: Module) -> None:
    """Change the linear layers of a model in place, where that is faster; float32 on a CPU only."""
    if not runs_on_numba(next(model.parameters())):
        return
    layers: list[Any] = [module for module in model.modules() if type(module) is Linear]
    for layer in layers:
        ways = ways_of_training(*layer.weight.shape)
        if set(ways) != {"plain"}:
            layer.__class__, layer.ways = FastLinear, ways


class FastLinear(Linear):
    """A linear layer that multiplies in chosen ways: states [..., I] -> [..., O]."""

    ways: tuple[Way, Way, Way]  # of the output, the input's gradient, the weight's gradient

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[:-1].numel() < LEAST_ROWS:
            return super().forward(input)
        out: Tensor = _Multiplied.apply(input, self.weight, self.bias, self.ways)
        return out


class _Multiplied(Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ways: tuple[Way, Way, Way],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ways = ways
        out = multiply(x.flatten(0, -2), weight, ways[0]).unflatten(0, x.shape[:-1])
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_input, of_weight, of_bias, _ = ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        dx = dw = db = None
        if of_input:
            dx = multiply(flat, weight.t(), ctx.ways[1]).unflatten(0, x.shape[:-1])
        if of_weight:
            dw = multiply(flat.t(), x.flatten(0, -2).t(), ctx.ways[2])
        if of_bias:
            db = flat.sum(0)
        return dx, dw, db, None
