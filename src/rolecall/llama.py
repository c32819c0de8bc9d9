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

from rolecall import kernels
from rolecall.kernels import flat, walkable
from rolecall.kv_cache import Cache, Paged
from rolecall.models import LanguageModel, lengths_turn

LEAST_ANGLES = 1024  # positions
SAME = 1e-4  # largest difference of logits, as a share of the largest logit


class Unlike(Exception):
    """A model is built otherwise."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of products stand [in, out], those of norms are numpy's; all are the model's own."""

    before_attention: np.ndarray  # [W]
    before_mlp: np.ndarray
    projections: list[tuple[Tensor, Tensor | None]]  # to queries, keys, values: weight and bias
    norms: list[np.ndarray]  # [D] of queries and of keys; empty where there are none
    out: Tensor
    out_bias: Tensor | None
    gate: Tensor
    up: Tensor
    down: Tensor
    scale: np.float32


class Llama:
    """One model, whose weights are used where they are."""

    def __init__(self, model: LanguageModel) -> None:
        """Raises Unlike."""
        self.model = model
        network = model.model
        try:
            decoder = network.model
            self.embedding, self.rotary = decoder.embed_tokens.weight.detach(), decoder.rotary_emb
            self.last, self.head = flat(decoder.norm.weight), network.lm_head
            self.eps = np.float32(decoder.norm.variance_epsilon)
            self.layers = [self._layer(layer) for layer in decoder.layers]
            self.heads = int(network.config.num_attention_heads)
            self.steady = not lengths_turn(network.config)
            self.angles = (np.zeros(0, np.float32), np.zeros(0, np.float32))
            turned = self.rotary(self.embedding[:1], torch.zeros(1, 1, dtype=torch.long))[0]
        except (AttributeError, RuntimeError, TypeError) as error:
            raise Unlike(str(error)) from error
        size = model.head_size
        widths = [count * size for count in (self.heads, model.num_kv_heads, model.num_kv_heads)]
        for layer in self.layers:  # numba's loops check no bounds
            found = [weight.shape[1] for weight, _ in layer.projections]
            norms = {len(weight) for weight in layer.norms}
            if found != widths or not norms <= {0, size} or len(norms) > 1:
                raise Unlike("heads of other sizes")
        if turned.shape[-1] != size:
            raise Unlike("only a part of a head is rotated")
        if len(self.layers) != model.num_layers or not self._same():
            raise Unlike("other logits")

    def _layer(self, layer: Any) -> _Layer:
        mixer, mlp = layer.self_attn, layer.mlp
        inner = [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        linear = [mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj, *inner]
        if any(type(part) is not Linear for part in linear) or any(
            part.bias is not None for part in inner
        ):
            raise Unlike("other parts")
        if self.model.config.hidden_act != "silu":
            raise Unlike("another activation")
        *projections, out, gate, up, down = [
            (part.weight.detach().t(), None if part.bias is None else part.bias.detach())
            for part in linear
        ]
        norms = [getattr(mixer, name, None) for name in ("q_norm", "k_norm")]
        return _Layer(
            before_attention=flat(layer.input_layernorm.weight),
            before_mlp=flat(layer.post_attention_layernorm.weight),
            projections=projections,
            norms=[flat(torch.zeros(0) if norm is None else norm.weight) for norm in norms],
            out=out[0],
            out_bias=out[1],
            gate=gate[0],
            up=up[0],
            down=down[0],
            scale=np.float32(mixer.scaling),
        )

    def logits(self, tokens: Tensor, layout: Paged, *, keep: Tensor) -> Tensor:
        """tokens [N] -> logits [len(keep), V] after the kept indices, at most N."""
        assert len(keep) <= len(tokens), "the loops check no bounds"
        kernels.use_threads()
        x = self.embedding[tokens]
        cos, sin, position = self._turns(layout.position)
        first, width, size, num_ids = self.layers[0], x.shape[1], self.model.head_size, len(x)
        normed, mixed = torch.empty_like(x), x.new_empty(num_ids, first.out.shape[0])
        parts = [x.new_empty(num_ids, weight.shape[1]) for weight, _ in first.projections]
        inner, other = (x.new_empty(num_ids, first.gate.shape[1]) for _ in range(2))
        x_flat, normed_flat, mixed_flat = flat(x), flat(normed), flat(mixed)
        inner_flat, other_flat = flat(inner), flat(other)
        query, key, value = map(flat, parts)
        slot, places = layout.slot.numpy(), layout.places
        sizes = (self.heads, self.model.num_kv_heads, size)
        for layer, k, v in zip(self.layers, layout.cache.keys, layout.cache.values, strict=True):
            keys, values = flat(k), flat(v)
            kernels.norm(x_flat, layer.before_attention, width, self.eps, normed_flat)
            for (weight, bias), out in zip(layer.projections, parts, strict=True):
                torch.mm(normed, weight, out=out)
                if bias is not None:
                    out.add_(bias)
            kernels.turn(
                query, key, value, *layer.norms, self.eps, cos, sin, position, keys, values, slot,
                *sizes,
            )  # fmt: skip
            kernels.attend(query, keys, values, *places, *sizes, layer.scale, mixed_flat)
            if layer is self.layers[-1]:  # of the others keys and values are all that is read
                x, mixed = x[keep], mixed[keep]
                normed, inner, other = (part[: len(x)] for part in (normed, inner, other))
                x_flat, inner_flat, other_flat = flat(x), flat(inner), flat(other)
            x.addmm_(mixed, layer.out)
            if layer.out_bias is not None:
                x.add_(layer.out_bias)
            kernels.norm(x_flat, layer.before_mlp, width, self.eps, normed_flat)
            torch.mm(normed, layer.gate, out=inner)
            torch.mm(normed, layer.up, out=other)
            kernels.gate(inner_flat, other_flat, inner.shape[1], inner_flat)
            x.addmm_(inner, layer.down)
        kernels.norm(x_flat, self.last, width, self.eps, normed_flat)
        return self.head(normed)

    def _turns(self, position: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cosines and sines [positions, D], and which of them each id takes."""
        if not self.steady:
            cos, sin = self._angles(position)
            return cos, sin, np.arange(len(position))
        needed = int(position.max()) + 1
        if needed * self.model.head_size > len(self.angles[0]):
            self.angles = self._angles(torch.arange(max(LEAST_ANGLES, 2 * needed)))
        return *self.angles, position.numpy()

    def _angles(self, position: Tensor) -> tuple[np.ndarray, np.ndarray]:
        cos, sin = self.rotary(self.embedding[:1], position[None])
        return flat(cos[0].contiguous()), flat(sin[0].contiguous())

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


def plain(model: LanguageModel) -> Llama | None:
    """None where the model is built otherwise, is not on a CPU, or is not in float32."""
    weight = next(model.model.parameters())
    if model.adapter is not None or not walkable(weight) or model.head_size % 8:
        return None
    try:
        return Llama(model)
    except Unlike:
        return None
