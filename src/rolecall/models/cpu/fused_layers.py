"""Replaces parts of a transformers model by ones with fewer passes over memory, for a CPU.

transformers computes a norm in six operations and a gate in two, each of which reads and writes all
states, forward and backward. A part is replaced only if it gives the same numbers. On a GPU this is
what Liger's kernels do.

Legend: N = tokens times heads, W = width of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Module

from rolecall.models.cpu import kernels
from rolecall.models.cpu.kernels import flat, runs_on_numba

if TYPE_CHECKING:
    from rolecall.models.autograd.function_context import FunctionContext


SAME = 1e-5  # largest difference, as a share of the largest number


def fuse(model: Module) -> None:
    """Replace what can be replaced, in place; float32 on a CPU only."""
    weight = next(model.parameters())
    if not runs_on_numba(weight):
        return
    fits: dict[tuple[type, type], bool] = {}  # a part's class, and ours
    for module in model.modules():
        for ours in (Norm, Gated):
            if ours.looks_like(module):
                kinds = (type(module), ours)
                if kinds not in fits:
                    fits[kinds] = _same(module, ours)
                if fits[kinds]:
                    module.__class__ = ours


def put_before(modules: list[Module], ours: type[Module]) -> Callable[[], None] | None:
    """Put our class before those of modules. Return what takes it away; None if there are none."""
    kinds = [type(module) for module in modules]

    def back() -> None:
        for module, kind in zip(modules, kinds, strict=True):
            module.__class__ = kind

    for module, kind in zip(modules, kinds, strict=True):
        module.__class__ = type(kind.__name__, (ours, kind), {})
    return back if modules else None


@torch.no_grad()
def _same(module: Module, ours: type[Norm | Gated]) -> bool:
    """Return whether both give the same for random weights and states."""
    theirs = deepcopy(module)
    random = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        if parameter.is_floating_point():  # rounded weights stay what they are
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    mine = deepcopy(theirs)
    mine.__class__ = ours
    first: Any = next((p for p in theirs.children() if hasattr(p, "in_features")), None)
    width = next(theirs.parameters()).shape[-1] if first is None else first.in_features
    x = 3.0 * torch.randn(5, width, generator=random)
    expected = theirs(x)
    return bool((mine(x) - expected).abs().max() <= SAME * expected.abs().max())


class Norm(Module):
    """Root mean square norm of states [..., W]."""

    weight: Tensor
    variance_epsilon: float

    @staticmethod
    def looks_like(module: Module) -> bool:
        return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")

    def forward(self, hidden_states: Tensor) -> Tensor:
        out: Tensor = RootMeanSquare.apply(hidden_states, self.weight, self.variance_epsilon)
        return out


class Gated(Module):
    """down(silu(gate(x)) * up(x)) of states [..., W]."""

    gate_proj: Module
    up_proj: Module
    down_proj: Module

    @staticmethod
    def looks_like(module: Module) -> bool:
        parts = ("gate_proj", "up_proj", "down_proj")
        return all(hasattr(module, name) for name in parts) and len(list(module.children())) <= 4

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(_Gate.apply(self.gate_proj(x), self.up_proj(x)))
        return out


class RootMeanSquare(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        kernels.use_threads()
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels.norm(flat(x), flat(weight), x.shape[-1], np.float32(eps), flat(out))
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernels.use_threads()
        x, weight = ctx.saved_tensors
        grad, dx = grad.contiguous(), torch.empty_like(x)
        parts = weight.new_empty(kernels.PARTS, len(weight))
        kernels.norm_backward(
            flat(grad), flat(x), flat(weight), len(weight), np.float32(ctx.eps), flat(dx),
            flat(parts),
        )  # fmt: skip
        return dx, parts.sum(0), None


class _Gate(Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, y: Tensor) -> Tensor:
        kernels.use_threads()
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        kernels.gate(flat(x), flat(y), x.shape[-1], flat(out))
        ctx.save_for_backward(x, y)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, Tensor]:
        kernels.use_threads()
        x, y = ctx.saved_tensors
        grad, dx, dy = grad.contiguous(), torch.empty_like(x), torch.empty_like(x)
        kernels.gate_backward(flat(grad), flat(x), flat(y), x.shape[-1], flat(dx), flat(dy))
        return dx, dy
