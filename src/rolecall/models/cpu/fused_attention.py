"""Replaces attention modules by ones that make queries and keys in one pass over memory.

What transformers computes of a query or a key in twelve operations (norm, rotary embedding, copies)
is one loop here, forward and backward.

Legend: N = tokens, H = heads of a query or a key, D = head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Module

from rolecall.models.cpu import kernels
from rolecall.models.cpu.fused_layers import Norm, put_before
from rolecall.models.cpu.kernels import flat, runs_on_numba

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention

    from rolecall.models.autograd.function_context import FunctionContext


PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "layer_idx", "scaling")


def fuse_heads(model: PreTrainedModel, rules: Mapping[int, Any]) -> Callable[[], None] | None:
    """Change the attention modules of a model in place. Return what changes them back.

    None if nothing was changed, as anywhere but in float32 on a CPU. `rules`: each layer's
    `ScoreRule` or None, with which transformers would ask the layout.
    """
    if not runs_on_numba(next(model.parameters())):
        return None
    changed = [
        module
        for module in model.modules()
        if _looks_like(module) and module.layer_idx in rules
        if getattr(rules[module.layer_idx], "sinks", None) is None
    ]
    for module in changed:
        module.rule = rules[module.layer_idx]
    return put_before(changed, Heads)


def _looks_like(module: LlamaAttention) -> bool:
    if not all(hasattr(module, attribute) for attribute in PARTS):
        return False
    parameters = list(inspect.signature(type(module).forward).parameters)[1:3]
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    ours = (
        isinstance(n, Norm) and len(n.weight) == module.head_dim for n in norms if n is not None
    )
    return parameters == ["hidden_states", "position_embeddings"] and all(ours)


class Heads(Module):
    """Fuses the heads; it stands before the class of an attention module."""

    head_dim: int
    layer_idx: int
    scaling: float
    rule: Any  # a ScoreRule without sinks, or None
    q_proj: Module
    k_proj: Module
    v_proj: Module
    o_proj: Module

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        *args: Tensor,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        layout = options.get("layout")
        if layout is None:  # another attention than ours was asked for
            unfused: tuple[Tensor, Tensor | None] = super().forward(
                hidden_states, position_embeddings, *args, **options
            )
            return unfused
        cos, sin = (angles.reshape(-1).contiguous() for angles in position_embeddings)
        query, key = (
            _NormRope.apply(project(hidden_states)[0], *scale, cos, sin, self.head_dim)
            for project, scale in zip((self.q_proj, self.k_proj), self.scales(cos), strict=True)
        )
        mixed = self.attend(layout, query, key, self.v_proj(hidden_states)[0])
        return self.o_proj(mixed)[None], None

    def attend(self, layout: Any, *projected: Tensor) -> Tensor:
        """Attend with query [N, H * D], key and value [N, K * D] -> [N, H * D]."""
        heads = (x.unflatten(1, (-1, self.head_dim)).transpose(0, 1) for x in projected)
        out: Tensor = layout.attend(self.layer_idx, *heads, scale=self.scaling, rule=self.rule)
        return out.flatten(1)

    def scales(self, like: Tensor) -> list[tuple[Tensor, float]]:
        """Return the norms of queries and keys: weight and epsilon, `like[:0]` (1-D) for none."""
        norms = (getattr(self, name, None) for name in ("q_norm", "k_norm"))
        return [
            (like[:0], 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
            for norm in norms
        ]


class _NormRope(Function):
    """States [N, H * D], the norm's weight [D] or none, cos and sin [N * D] -> [N, H * D]."""

    @staticmethod
    def forward(
        ctx: FunctionContext,
        x: Tensor,
        weight: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        size: int,
    ) -> Tensor:
        kernels.use_threads()
        x = x.contiguous()
        out = torch.empty_like(x)
        ctx.sizes = (x.shape[1] // size, size)
        if len(cos) * ctx.sizes[0] != x.numel() or len(sin) != len(cos) or size % 2:
            raise ValueError("only a part of a head is rotated")  # the loops check no bounds
        kernels.rope(
            flat(x), flat(weight), np.float32(eps), flat(cos), flat(sin), *ctx.sizes, flat(out)
        )
        ctx.save_for_backward(x, weight, cos, sin)
        ctx.eps = eps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernels.use_threads()
        x, weight, cos, sin = ctx.saved_tensors
        grad, dx = grad.contiguous(), torch.empty_like(x)
        parts = x.new_empty(kernels.PARTS, ctx.sizes[1])
        kernels.rope_backward(
            flat(grad), flat(x), flat(weight), np.float32(ctx.eps), flat(cos), flat(sin),
            *ctx.sizes, flat(dx), flat(parts),
        )  # fmt: skip
        return dx, parts.sum(0) if len(weight) else None, None, None, None, None
