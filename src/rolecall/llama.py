"""The forward pass of models built as Llama is, without modules: for sampling on a CPU.

A decoding step of a small model is mostly the cost of calling small operations. transformers makes
about 140 of a layer; here they are ten. A model is taken only if its layers have these parts and
its logits come out the same.

Legend: N = ids, R = rows, W = hidden size, H / K = query / key-value heads, D = head size, V =
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear, silu

from rolecall import kernels
from rolecall.kv_cache import Cache, Paged, flat, walkable
from rolecall.models import LanguageModel

SAME = 1e-4  # largest difference of logits, as a share of the largest logit


class Unlike(Exception):
    """A model is built otherwise."""


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: Tensor  # [W] weights of the norms
    before_mlp: Tensor
    projections: list[Linear]  # to queries, keys, values
    norms: list[Tensor]  # [D] of queries and of keys; empty tensors where there are none
    out: Linear
    gate: Linear
    up: Linear
    down: Linear
    scale: float


class Llama:
    """Weights are those of the model, not copies."""

    def __init__(self, model: LanguageModel) -> None:
        """Raises Unlike."""
        self.model = model
        network = model.model
        try:
            decoder = network.model
            self.embedding, self.rotary = decoder.embed_tokens.weight, decoder.rotary_emb
            self.last, self.head = decoder.norm.weight, network.lm_head
            self.eps = np.float32(decoder.norm.variance_epsilon)
            self.layers = [self._layer(layer) for layer in decoder.layers]
        except AttributeError as error:
            raise Unlike(str(error)) from error
        self.heads = int(network.config.num_attention_heads)
        if len(self.layers) != model.num_layers or not self._same():
            raise Unlike("other logits")

    def _layer(self, layer: Any) -> _Layer:
        mixer, mlp = layer.self_attn, layer.mlp
        parts = [mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj]
        parts += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if (
            any(type(part) is not Linear for part in parts)
            or self.model.config.hidden_act != "silu"
        ):
            raise Unlike("other parts")
        if mlp.gate_proj.bias is not None or mlp.up_proj.bias is not None:
            raise Unlike("biases")
        norms = [getattr(mixer, name, None) for name in ("q_norm", "k_norm")]
        return _Layer(
            before_attention=layer.input_layernorm.weight,
            before_mlp=layer.post_attention_layernorm.weight,
            projections=parts[:3],
            norms=[torch.zeros(0) if norm is None else norm.weight for norm in norms],
            out=parts[3],
            gate=parts[4],
            up=parts[5],
            down=parts[6],
            scale=mixer.scaling,
        )

    def logits(self, tokens: Tensor, layout: Paged, *, keep: Tensor) -> Tensor:
        """tokens [N] -> logits [len(keep), V] after the kept indices."""
        kernels.use_threads(torch.get_num_threads())
        x = self.embedding[tokens]
        cos, sin = (part[0].contiguous() for part in self.rotary(x, layout.position[None]))
        for number, layer in enumerate(self.layers):
            normed = self._norm(x, layer.before_attention)
            query, key, value = (
                linear(normed, part.weight, part.bias).view(len(x), -1, self.model.head_size)
                for part in layer.projections
            )
            mixed = layout.turn_and_attend(
                number, query, key, value, norms=layer.norms, eps=self.eps, cos=cos, sin=sin,
                scale=layer.scale,
            )  # fmt: skip
            x = _added(x, mixed.view(len(x), -1), layer.out)
            normed = self._norm(x, layer.before_mlp)
            inner = silu(linear(normed, layer.gate.weight), inplace=True)
            x = _added(x, inner.mul_(linear(normed, layer.up.weight)), layer.down)
        return self.head(self._norm(x[keep], self.last))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.norm(flat(x), flat(weight), x.shape[1], self.eps, flat(out))
        return out

    @torch.no_grad()
    def _same(self) -> bool:
        """Whether both ways give the same logits, for rows of 1, 20 and 5 ids."""
        model, lengths = self.model, torch.tensor([1, 20, 5])
        first = lengths.cumsum(0) - lengths
        cache = Cache(
            layers=model.num_layers, pages=6, heads=model.num_kv_heads, size=model.head_size,
            like=self.embedding,
        )  # fmt: skip
        table = torch.tensor([[0, 1], [2, 3], [4, 5]], dtype=torch.int32)
        layout = Paged(table, torch.zeros_like(first), lengths, cache=cache)
        tokens = torch.arange(26) * 7919 % model.vocabulary
        keep = torch.arange(26)
        theirs = model.logits(tokens, layout.position, layout=layout, keep=keep)
        ours = self.logits(tokens, layout, keep=keep)
        return bool((ours - theirs).abs().max() <= SAME * theirs.abs().max())


def _added(x: Tensor, y: Tensor, layer: Linear) -> Tensor:
    """x + layer(y)."""
    if layer.bias is not None:
        x = x + layer.bias
    return torch.addmm(x, y, layer.weight.t())


def plain(model: LanguageModel) -> Llama | None:
    """None where the model is built otherwise, is not on a CPU, or is not in float32."""
    weight = next(model.model.parameters())
    if model.adapter is not None or not walkable(weight, model.head_size):
        return None
    try:
        return Llama(model)
    except Unlike:
        return None
