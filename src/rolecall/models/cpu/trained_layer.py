"""Trains the layers of Llama-like models in two parts each, for a CPU (`layer_loops`).

What PyTorch does of such a layer in about twenty operations, each of which reads and writes all
states, is two here and the attention between them. A layer is taken whose parts are those of a
Llama-like model; one with adapters is computed by its modules.

Legend: N = tokens, W = hidden size, I = inner size, H / K = query / key-value heads, D = head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Linear, Module

from rolecall.models.cpu import kernels, layer_loops
from rolecall.models.cpu.fused_attention import Heads
from rolecall.models.cpu.fused_layers import Gated, Norm, put_before
from rolecall.models.cpu.kernels import flat, runs_on_numba
from rolecall.models.cpu.tiled_products import laid_out
from rolecall.models.cpu.trained_products import FastLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP

    from rolecall.models.autograd.function_context import FunctionContext


LINEAR = (Linear, FastLinear)
LARGEST = 2**25  # weights of a layer times threads: each adds up gradients of its own


def fuse_whole(model: PreTrainedModel) -> Callable[[], None] | None:
    """Change the layers of a model in place. Return what changes them back.

    None if nothing was changed, as anywhere but in float32 on a CPU.
    """
    if not runs_on_numba(next(model.parameters())):
        return None
    layers = getattr(model.get_decoder(), "layers", None) or []
    return put_before([layer for layer in layers if _looks_like(layer)], Whole)


def _looks_like(layer: LlamaDecoderLayer) -> bool:
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    if not all(hasattr(layer, module) for module in parts) or not _fits(layer):
        return False
    linear, size = _linear(layer.self_attn, layer.mlp), layer.self_attn.head_dim
    count = sum(module.weight.numel() for module in linear)
    few = count * torch.get_num_threads() <= LARGEST
    return few and all(
        n % 8 == 0 for n in {size, *(n for module in linear for n in module.weight.shape)}
    )


def _fits(layer: LlamaDecoderLayer) -> bool:
    """Return whether its parts are still exactly those that are computed here."""
    norms = (layer.input_layernorm, layer.post_attention_layernorm)
    if not isinstance(layer.self_attn, Heads) or type(layer.mlp) is not Gated:
        return False
    linear = _linear(layer.self_attn, layer.mlp)
    if any(type(n) is not Norm for n in norms) or any(type(p) not in LINEAR for p in linear):
        return False
    first = norms[0].variance_epsilon
    return all(len(w) == 0 or eps == first for w, eps in layer.self_attn.scales(norms[0].weight))


def _linear(attention: LlamaAttention, mlp: LlamaMLP) -> list[Linear]:
    return [
        attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
        mlp.gate_proj, mlp.up_proj, mlp.down_proj,
    ]  # fmt: skip


class Whole(Module):
    """Stands before the class of a layer: states [1, N, W] -> those of `keep`, or of all."""

    input_layernorm: Norm
    self_attn: Heads
    post_attention_layernorm: Norm
    mlp: LlamaMLP

    def forward(self, hidden_states: Tensor, *args: Tensor, **options: Any) -> Tensor:
        attention, mlp, layout = self.self_attn, self.mlp, options.get("layout")
        if layout is None or not _fits(self):
            unfused: Tensor = super().forward(hidden_states, *args, **options)
            return unfused
        linear = _linear(attention, mlp)
        *projections, out = linear[:4]
        cos_sin = [angles.reshape(-1).contiguous() for angles in options["position_embeddings"]]
        keep = options.get("keep") if getattr(self, "is_trimmed", False) else None
        x, size = hidden_states[0], attention.head_dim
        parts = Begin.apply(
            x,
            *cos_sin,
            size,
            *_numbers(self.input_layernorm, projections),
            *(weight for weight, _ in attention.scales(cos_sin[0])),
        )
        mixed = attention.attend(layout, *parts)
        if keep is not None:
            x, mixed = x.index_select(0, keep), mixed.index_select(0, keep)
        whole: Tensor = Finish.apply(
            x, mixed, *_numbers(self.post_attention_layernorm, [out, *linear[4:]])
        )
        return whole[None]


def _numbers(norm: Norm, linear: list[Linear]) -> tuple[float | Tensor | None, ...]:
    """Return a norm's epsilon and weight, then linear layers' weights, then biases or None."""
    weights, biases = [module.weight for module in linear], [module.bias for module in linear]
    return norm.variance_epsilon, norm.weight, *weights, *biases


def _with_biases(
    weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]
) -> list[tuple[np.ndarray, np.ndarray]]:
    none = np.zeros(0, np.float32)
    return [
        (laid_out(weight), none if bias is None else flat(bias))
        for weight, bias in zip(weights, biases, strict=True)
    ]


def _gradients(
    loops: Callable[[bool, np.ndarray, int], None],
    before: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    norms: Sequence[Tensor],
) -> list[Tensor | None]:
    """Return the gradients of a part's weights, in this order.

    `loops` adds to one row of numbers per thread, in which they stand one after another; those of
    biases only if there are any.
    """
    biased = any(bias is not None for bias in biases)
    widths = [len(weight) if biased else 0 for weight in weights]
    sizes = [len(before), *(w.numel() for w in weights), *widths, *map(len, norms)]
    parts = before.new_zeros(torch.get_num_threads(), sum(sizes))
    loops(biased, flat(parts), parts.shape[1])
    pieces = iter((parts.sum(0) if len(parts) > 1 else parts[0]).split(sizes))
    gradients: list[Tensor | None] = [next(pieces), *(next(pieces).view(w.shape) for w in weights)]
    for bias in biases:
        piece = next(pieces)
        gradients.append(None if bias is None else piece)
    return [*gradients, *pieces]


class Begin(Function):
    """x [N, W] -> query [N, H * D], key and value [N, K * D]."""

    @staticmethod
    def forward(
        ctx: FunctionContext,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        size: int,
        eps: float,
        *given: Tensor,
    ) -> tuple[Tensor, ...]:
        before, weights, biases, norms = given[0], given[1:4], given[4:7], given[7:]
        kernels.use_threads()
        x = x.contiguous()
        if len(cos) != len(x) * size or len(sin) != len(cos):
            raise ValueError("only a part of a head is rotated")  # the loops check no bounds
        query, key, value = (x.new_empty(len(x), len(weight)) for weight in weights)
        with_norm = len(norms[0]) > 0
        raw = [torch.empty_like(t) if with_norm else t.new_empty(0) for t in (query, key)]
        ctx.eps = np.float32(eps)
        ctx.sizes = (query.shape[1] // size, key.shape[1] // size, size)
        layer_loops.begin(
            torch.get_num_threads(), flat(x), flat(before), ctx.eps, *_with_biases(weights, biases),
            *map(flat, norms), flat(cos), flat(sin), ctx.sizes,
            *map(flat, (*raw, query, key, value)),
        )  # fmt: skip
        ctx.save_for_backward(x, cos, sin, *raw, before, *weights, *biases, *norms)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels.use_threads()
        x, cos, sin, raw_query, raw_key, before, *saved = ctx.saved_tensors
        weights, biases, norms = saved[:3], saved[3:6], saved[6:]
        dx = torch.empty_like(x)

        def loops(biased: bool, parts: np.ndarray, length: int) -> None:
            transposes = (laid_out(weight, transposed=True) for weight in weights)
            layer_loops.begin_backward(
                *(flat(grad.contiguous()) for grad in grads), flat(x), flat(before), ctx.eps,
                *transposes, biased, *map(flat, norms), flat(cos), flat(sin), ctx.sizes,
                flat(raw_query), flat(raw_key), flat(dx), parts, length,
            )  # fmt: skip

        return dx, None, None, None, None, *_gradients(loops, before, weights, biases, norms)


class Finish(Function):
    """x [N, W] and mixed [N, H * D] -> [N, W], the states after the layer."""

    @staticmethod
    def forward(
        ctx: FunctionContext, x: Tensor, mixed: Tensor, eps: float, *given: Tensor
    ) -> Tensor:
        before, weights, biases = given[0], given[1:5], given[5:]
        kernels.use_threads()
        x, mixed = x.contiguous(), mixed.contiguous()
        middle, out = torch.empty_like(x), torch.empty_like(x)
        gate, up = (x.new_empty(len(x), len(weights[1])) for _ in range(2))
        ctx.eps = np.float32(eps)
        outs, *inner = _with_biases(weights, biases)
        layer_loops.finish(
            torch.get_num_threads(), flat(x), flat(mixed), outs, flat(before), ctx.eps, *inner,
            mixed.shape[1], gate.shape[1], flat(middle), flat(gate), flat(up), flat(out),
        )  # fmt: skip
        ctx.save_for_backward(mixed, middle, gate, up, before, *weights, *biases)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernels.use_threads()
        mixed, middle, gate, up, before, *saved = ctx.saved_tensors
        weights, biases = saved[:4], saved[4:]
        dx, d_mixed = torch.empty_like(middle), torch.empty_like(mixed)

        def loops(biased: bool, parts: np.ndarray, length: int) -> None:
            outs, *inner = (laid_out(weight, transposed=True) for weight in weights)
            layer_loops.finish_backward(
                flat(grad.contiguous()), flat(mixed), flat(middle), flat(gate), flat(up), outs,
                flat(before), ctx.eps, *inner, biased, mixed.shape[1], gate.shape[1], flat(dx),
                flat(d_mixed), parts, length,
            )  # fmt: skip

        return dx, d_mixed, None, *_gradients(loops, before, weights, biases, [])
