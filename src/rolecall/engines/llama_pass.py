"""Computes the forward pass of Llama-like models without modules, for sampling on a CPU.

A decoding step of a small model is mostly the cost of calling small operations. transformers makes
about 140 of a layer; here they are ten. A model is taken only if its layers have these parts and
its logits come out the same.

Legend: N = tokens, R = rows, W = hidden size, H / K = query / key-value heads, D = head size, V =
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Linear

from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.attention.score_rule import Observed, ScoreRule
from rolecall.models.cpu import kernels, ruled_attention
from rolecall.models.cpu.kernels import flat, runs_on_numba
from rolecall.models.language_model import LanguageModel, has_dynamic_rope, mixture_of

if TYPE_CHECKING:
    from rolecall.models.lora import Mixture

LEAST_ANGLES = 1024  # positions
NO_SINKS = np.zeros(0, np.float32)
SAME = 1e-4  # largest difference of logits, as a share of the largest logit


class Unlike(Exception):
    """A model is built otherwise."""


class _Product:
    """x @ weight + bias, and the adapters' part of it: the model's own weights."""

    def __init__(self, part: Any) -> None:
        self.adapted = part if hasattr(part, "lora_A") else None  # an adapters.MixedLinear
        linear = part if self.adapted is None else part.base_layer
        if type(linear) is not Linear:
            raise Unlike("other parts")
        self.weight = linear.weight.detach().t()  # [in, out]
        self.bias = None if linear.bias is None else linear.bias.detach()

    def into(self, out: Tensor, x: Tensor, mixture: Mixture | None, *, add: bool = False) -> None:
        """x [N, in] -> out [N, out], or added to what stands there."""
        if add:
            out.addmm_(x, self.weight)
        else:
            torch.mm(x, self.weight, out=out)
        if self.bias is not None:
            out.add_(self.bias)
        if self.adapted is not None and mixture is not None:
            found = self.adapted.of(mixture)
            if found is not None:
                down, up, share = found
                out.addmm_((x @ down.detach().t()).mul_(share), up.detach().t())


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of norms are numpy's."""

    before_attention: np.ndarray  # [W]
    before_mlp: np.ndarray
    projections: list[_Product]  # to queries, keys, values
    norms: list[np.ndarray]  # [D] of queries and of keys; empty where there are none
    out: _Product
    gate: _Product
    up: _Product
    down: _Product
    scale: np.float32


class Llama:
    """One model, whose weights are used where they are."""

    def __init__(self, model: LanguageModel) -> None:
        """Raises Unlike."""
        self.model = model
        network = model.model if model.adapter is None else model.model.get_base_model()
        try:
            decoder = network.model
            self.embedding, self.rotary = decoder.embed_tokens.weight.detach(), decoder.rotary_emb
            self.last, self.head = flat(decoder.norm.weight), network.lm_head
            self.eps = np.float32(decoder.norm.variance_epsilon)
            self.layers = [self._layer(layer) for layer in decoder.layers]
            self.heads = int(network.config.num_attention_heads)
            self.windows: dict[int, int] = {}  # by layer, of those that have one
            self.steady = not has_dynamic_rope(network.config)
            self.angles = (np.zeros(0, np.float32), np.zeros(0, np.float32))
            rope = self.rotary(self.embedding[:1], torch.zeros(1, 1, dtype=torch.long))[0]
        except (AttributeError, RuntimeError, TypeError) as error:
            raise Unlike(str(error)) from error
        size = model.head_size
        widths = [count * size for count in (self.heads, model.num_kv_heads, model.num_kv_heads)]
        for layer in self.layers:  # numba's loops check no bounds
            found = [part.weight.shape[1] for part in layer.projections]
            norms = {len(weight) for weight in layer.norms}
            if found != widths or not norms <= {0, size} or len(norms) > 1:
                raise Unlike("heads of other sizes")
        if rope.shape[-1] != size:
            raise Unlike("only a part of a head is rotated")
        if len(self.layers) != model.num_layers or not self._same():
            raise Unlike("other logits")

    def _layer(self, layer: Any) -> _Layer:
        mixer, mlp = layer.self_attn, layer.mlp
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        *projections, out = [_Product(getattr(mixer, name)) for name in names]
        inner = [_Product(part) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
        if self.model.config.hidden_act != "silu":
            raise Unlike("another activation")
        norms = [getattr(mixer, name, None) for name in ("q_norm", "k_norm")]
        return _Layer(
            before_attention=flat(layer.input_layernorm.weight),
            before_mlp=flat(layer.post_attention_layernorm.weight),
            projections=projections,
            norms=[flat(torch.zeros(0) if norm is None else norm.weight) for norm in norms],
            out=out,
            gate=inner[0],
            up=inner[1],
            down=inner[2],
            scale=np.float32(mixer.scaling),
        )

    def logits(
        self, tokens: Tensor, layout: Paged, *, keep: Tensor, mixture: Mixture | None = None
    ) -> Tensor:
        """tokens [N] -> logits [len(keep), V] after the kept indices, at most N.

        `mixture`: the adapters of these tokens; none, the frozen base alone.
        """
        assert len(keep) <= len(tokens), "the loops check no bounds"
        kernels.use_threads()
        x = self.embedding[tokens]
        cos, sin, position = self._turns(layout.position)
        first, width, size, num_ids = self.layers[0], x.shape[1], self.model.head_size, len(x)
        normed, mixed = torch.empty_like(x), x.new_empty(num_ids, first.out.weight.shape[0])
        parts = [x.new_empty(num_ids, part.weight.shape[1]) for part in first.projections]
        inner, other = (x.new_empty(num_ids, first.gate.weight.shape[1]) for _ in range(2))
        x_flat, normed_flat, mixed_flat = flat(x), flat(normed), flat(mixed)
        inner_flat, other_flat = flat(inner), flat(other)
        query, key, value = map(flat, parts)
        slot, places = layout.slot.numpy(), layout.places
        sizes = (self.heads, self.model.num_kv_heads, size)
        longest = layout.longest if self.windows else 0
        stored = zip(self.layers, layout.cache.keys, layout.cache.values, strict=True)
        for number, (layer, k, v) in enumerate(stored):
            keys, values = flat(k), flat(v)
            kernels.norm(x_flat, layer.before_attention, width, self.eps, normed_flat)
            for product, out in zip(layer.projections, parts, strict=True):
                product.into(out, normed, mixture)
            kernels.rope_and_cache(
                query, key, value, *layer.norms, self.eps, cos, sin, position, keys, values, slot,
                *sizes,
            )  # fmt: skip
            given = (query, keys, values, *places, *sizes, layer.scale)
            if longest > (window := self.windows.get(number, longest)):
                ruled_attention.attend(*given, window, np.float32(0), NO_SINKS, mixed_flat)
            else:
                kernels.attend(*given, mixed_flat)
            if layer is self.layers[-1]:  # of the others keys and values are all that is read
                x, mixed = x[keep], mixed[keep]
                normed, inner, other = (part[: len(x)] for part in (normed, inner, other))
                x_flat, inner_flat, other_flat = flat(x), flat(inner), flat(other)
                mixture = None if mixture is None else mixture.only(keep)
            layer.out.into(x, mixed, mixture, add=True)
            kernels.norm(x_flat, layer.before_mlp, width, self.eps, normed_flat)
            layer.gate.into(inner, normed, mixture)
            layer.up.into(other, normed, mixture)
            kernels.gate(inner_flat, other_flat, inner.shape[1], inner_flat)
            layer.down.into(x, inner, mixture, add=True)
        kernels.norm(x_flat, self.last, width, self.eps, normed_flat)
        return self.head(normed)

    def _turns(self, position: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cosines and sines [positions, D], and which of them each token takes."""
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
        """Whether both ways give the same logits, for rows of 1, 20 and 5 tokens.

        Windows are taken from what the model's own layers ask for, as these rows may be too short
        to show them.
        """
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
        rules: dict[int, ScoreRule | None] = {}
        theirs = model.logits(tokens, layout.position, layout=Observed(layout, rules), keep=keep)
        for number, rule in rules.items():
            if rule is not None and (rule.window is None or not rule.is_window):
                raise Unlike("other scores")
            if rule is not None and rule.window is not None:
                self.windows[number] = rule.window
        mixture = None if model.adapter is None else mixture_of([model] * 3, lengths)
        ours = self.logits(tokens, layout, keep=keep, mixture=mixture)
        return bool((ours - theirs).abs().max() <= SAME * theirs.abs().max())


def plain(model: LanguageModel) -> Llama | None:
    """None where the model is built otherwise, is not on a CPU, or is not in float32."""
    weight = next(model.model.parameters())
    if not runs_on_numba(weight) or model.head_size % 8 or not model.samples_here:
        return None
    try:
        return Llama(model)
    except Unlike:
        return None
