"""Makes a model's head compute float32 logits, whatever its weights are stored in.

In bfloat16 logits of 20 are steps of .125 apart, so log-probs would be off by as much. The products
of two bfloat16 numbers are exact in float32, where they are also summed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Linear
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rolecall.models.autograd.function_context import FunctionContext


def make_exact(model: PreTrainedModel) -> None:
    """Change the head in place; one in float32, or of another kind, stays as it is."""
    head = model.get_output_embeddings()
    if type(head) is Linear and head.weight.dtype != torch.float32:
        head.__class__ = ExactHead


class ExactHead(Linear):
    """States [..., W] -> float32 logits [..., V]."""

    def forward(self, input: Tensor) -> Tensor:
        if has_mixed_product(input, self.weight):
            rows = input.reshape(-1, input.shape[-1])
            logits = _MixedProduct.apply(rows, self.weight).view(*input.shape[:-1], -1)
            return logits if self.bias is None else logits + self.bias.float()
        bias = None if self.bias is None else self.bias.float()
        return linear(input.float(), self.weight.float(), bias)


def has_mixed_product(states: Tensor, weight: Tensor) -> bool:
    """Return whether the device multiplies these in their own dtype and sums in float32.

    Tensor cores do, ten times faster than products of float32 copies.
    """
    return weight.device.type == "cuda" and states.dtype == weight.dtype != torch.float32


class _MixedProduct(Function):
    """states [M, W] and weight [V, W] -> float32 logits [M, V].

    In the backward pass the logits' gradient is rounded once to the dtype of the weights, as those
    of all other layers are.
    """

    @staticmethod
    def forward(ctx: FunctionContext, states: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return torch.mm(states, weight.T, out_dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        states, weight = ctx.saved_tensors
        rounded = grad.to(weight.dtype)
        of_states = rounded @ weight if ctx.needs_input_grad[0] else None
        of_weight = rounded.T @ states if ctx.needs_input_grad[1] else None
        return of_states, of_weight
