"""Computes the forward pass of Llama-like models without modules, for sampling on a CPU.

A decoding step of a small model is mostly the cost of calling small operations. transformers makes
about 140 of a layer; here they are two, or ten. A model is taken only if its layers have these
parts and its logits come out the same.

Legend: N = tokens, R = rows, W = hidden size, H / K = query / key-value heads, D = head size, V =
vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Linear

from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.attention.score_rule import Observed, ScoreRule
from rolecall.models.cpu import kernels, paged_attention, tiled_layers
from rolecall.models.cpu.kernels import PAGE, flat
from rolecall.models.cpu.tiled_products import TiledProduct
from rolecall.models.cpu.trained_products import FastLinear
from rolecall.models.exact_head import ExactHead
from rolecall.models.language_model import (
    LanguageModel,
    has_dynamic_rope,
    make_mixture,
    original_context,
)

if TYPE_CHECKING:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    from rolecall.models.lora import Mixture

notices = logging.getLogger("rolecall.notices")
LEAST_ANGLES = 1024  # positions
# Largest norm of the difference of logits, as a share of their own norm. In bfloat16 the model
# itself rounds its states after each part, and this pass does not: smollm2-135m differs by 0.05,
# most of which is the error of the model.
SAME = {torch.float32: 3e-5, torch.bfloat16: 0.2}


class Unlike(Exception):
    """A model is built otherwise."""


class _Part:
    """A linear layer of the model: its own weights, and the adapters' part of it."""

    def __init__(self, part: Any, *, only: str | None = None) -> None:
        """`only`: the one adapter that is ever asked for, which is added to the weights."""
        self.adapted = part if hasattr(part, "lora_A") else None  # an adapters.MixedLinear
        linear = part if self.adapted is None else part.base_layer
        if type(linear) not in (Linear, FastLinear, ExactHead):
            raise Unlike("other parts")
        if linear.weight.dtype not in SAME:
            raise Unlike("weights of another type")
        added = None
        if only is not None and self.adapted is not None:
            added, self.adapted = self.adapted.low_rank(only), None
        self.product = TiledProduct(linear.weight, linear.bias, low_rank=added)

    def times(self, x: Tensor, mixture: Mixture | None) -> Tensor:
        """Multiply x [N, in] by the weights -> [N, out]."""
        return self._adapted(x, self.product.times(x), mixture)

    def plus(self, x: Tensor, to: Tensor, mixture: Mixture | None) -> Tensor:
        """Add the product to `to` [N, out], in place."""
        return self._adapted(x, self.product.plus(x, to), mixture)

    def _adapted(self, x: Tensor, out: Tensor, mixture: Mixture | None) -> Tensor:
        if self.adapted is not None and mixture is not None:
            weights = self.adapted.adapter_weights(mixture)
            if weights is not None:
                down, up, share = weights
                out.addmm_((x @ down.detach().t()).mul_(share), up.detach().t())
        return out


class _Scale:
    """A norm's weight for numba: the model's own memory, or a float32 copy that follows it."""

    def __init__(self, weight: Tensor | None) -> None:
        self.weight = torch.zeros(0) if weight is None else weight.detach()
        self.numbers = flat(self.weight.float())  # the same memory where it is float32
        self.sources = [self.weight]

    def follow(self) -> None:
        if self.weight.dtype != torch.float32:
            self.numbers[:] = flat(self.weight.float())


@dataclass(frozen=True)
class _Layer:
    before_attention: _Scale  # [W]
    before_mlp: _Scale
    projections: list[_Part]  # to queries, keys, values
    norms: list[_Scale]  # [D] of queries and of keys; empty where there are none
    out: _Part
    gate: _Part
    up: _Part
    down: _Part
    scale: np.float32

    def arrays(self) -> Iterator[np.ndarray]:
        """Yield what it reads, as `tiled_layers.compute` takes it."""
        yield self.before_attention.numbers
        yield from self._linear(*self.projections)
        yield from (norm.numbers for norm in self.norms)
        yield from self._linear(self.out)
        yield self.before_mlp.numbers
        yield from self._linear(self.gate, self.up, self.down)

    def _linear(self, *parts: _Part) -> Iterator[np.ndarray]:
        for linear in parts:
            yield from (linear.product.laid_out, linear.product.bias)

    @property
    def parts(self) -> tuple[_Part, ...]:
        return (*self.projections, self.out, self.gate, self.up, self.down)


class Llama:
    """One model, whose weights are used where they are."""

    def __init__(self, model: LanguageModel, *, alone: bool = False) -> None:
        """`alone`: no other adapter of the base is ever sampled. Raises Unlike."""
        self.model = model
        # Not in bfloat16, where what an adapter adds would be lost in rounding.
        self.merged = alone and model.adapter is not None and model.is_float32
        self.published = False  # weights have changed since the last pass
        self.like = torch.zeros(1, model.hidden_size)  # the states, keys and values are float32
        network = model.model if model.adapter is None else model.model.get_base_model()
        try:
            decoder = network.model
            self.embedding, self.rotary = decoder.embed_tokens.weight.detach(), decoder.rotary_emb
            self.last, self.head = _Scale(decoder.norm.weight), _Part(network.lm_head)
            self.eps = np.float32(decoder.norm.variance_epsilon)
            self.layers = [self._layer(layer) for layer in decoder.layers]
            self.heads = int(network.config.num_attention_heads)
            self.windows = np.full(len(self.layers), paged_attention.UNLIMITED)  # positions
            self.scales = np.array([layer.scale for layer in self.layers])
            self.steady = not has_dynamic_rope(network.config)
            self.angles = (np.zeros(0, np.float32), np.zeros(0, np.float32))
            rope = self.rotary(self.embedding[:1], torch.zeros(1, 1, dtype=torch.long))[0]
        except (AttributeError, RuntimeError, TypeError) as error:
            raise Unlike(str(error)) from error
        size = model.head_size
        self.sizes = (self.heads, model.num_kv_heads, size)
        widths = [count * size for count in (self.heads, model.num_kv_heads, model.num_kv_heads)]
        for layer in self.layers:  # numba's loops check no bounds
            outputs = [projection.product.num_outputs for projection in layer.projections]
            norms = {len(norm.numbers) for norm in layer.norms}
            if outputs != widths or not norms <= {0, size} or len(norms) > 1:
                raise Unlike("heads of other sizes")
        if rope.shape[-1] != size:
            raise Unlike("only a part of a head is rotated")
        self.made = list(self._made())
        self.sources = [source for derived in self.made for source in derived.sources]
        self.versions = [source._version for source in self.sources]
        if len(self.layers) != model.num_layers or not self._same():
            notices.warning(
                "%s: the pass of rolecall gives other logits than its modules, which sample it now",
                network.name_or_path,
            )
            raise Unlike("other logits")

    def _layer(self, layer: LlamaDecoderLayer) -> _Layer:
        mixer, mlp = layer.self_attn, layer.mlp
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        only = self.model.adapter if self.merged else None
        *projections, out = [_Part(getattr(mixer, name), only=only) for name in names]
        inner = [_Part(linear, only=only) for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)]
        if self.model.config.hidden_act != "silu":
            raise Unlike("another activation")
        norms = [getattr(mixer, name, None) for name in ("q_norm", "k_norm")]
        return _Layer(
            before_attention=_Scale(layer.input_layernorm.weight),
            before_mlp=_Scale(layer.post_attention_layernorm.weight),
            projections=projections,
            norms=[_Scale(None if norm is None else norm.weight) for norm in norms],
            out=out,
            gate=inner[0],
            up=inner[1],
            down=inner[2],
            scale=np.float32(mixer.scaling),
        )

    def logits(
        self, tokens: Tensor, layout: Paged, *, keep: Tensor, mixture: Mixture | None = None
    ) -> Tensor:
        """Compute logits [len(keep), V] of tokens [N] after the kept indices, which ascend.

        `mixture`: the adapters of these tokens; none, the weights as they are here.
        """
        assert len(keep) <= len(tokens), "the loops check no bounds"
        kernels.use_threads()
        self._follow()
        x = self.embedding[tokens].float()
        if self.is_whole:
            x = self._in_one_call(x, layout, keep)
        else:
            x = self._by_parts(x, layout, keep, mixture)
        normed = torch.empty_like(x)
        kernels.norm(flat(x), self.last.numbers, x.shape[1], self.eps, flat(normed))
        return self.head.times(normed, None)[:, : self.model.vocabulary]

    def _in_one_call(self, x: Tensor, layout: Paged, keep: Tensor) -> Tensor:
        """Return the states after all layers of the kept tokens of x [N, W]."""
        addresses, counts = self._table
        stored, gate = layout.cache.arrays, self.layers[0].gate.product
        tiled_layers.compute(
            flat(x), x.shape[1], gate.num_outputs, addresses, counts, gate.way,
            layout.cache.addresses, len(stored[0][0]), self.eps, self._turns(layout.position),
            layout.slot.numpy(), layout.places, self.windows, self.scales, self.sizes,
            keep.numpy(),
        )  # fmt: skip
        return x[: len(keep)]

    def _by_parts(self, x: Tensor, layout: Paged, keep: Tensor, mixture: Mixture | None) -> Tensor:
        """Compute the same with adapters, or with weights of different types."""
        turns, slot, sizes = self._turns(layout.position), layout.slot.numpy(), self.sizes
        _, *no_rule = paged_attention.NO_RULE
        normed, mixed = torch.empty_like(x), x.new_empty(len(x), sizes[0] * sizes[2])
        for number, layer in enumerate(self.layers):
            stored = layout.cache.arrays[number]
            norms = (norm.numbers for norm in layer.norms)
            kernels.norm(
                flat(x), layer.before_attention.numbers, x.shape[1], self.eps, flat(normed)
            )
            query, key, value = (
                flat(projection.times(normed, mixture)) for projection in layer.projections
            )
            kernels.rope_and_cache(
                query, key, value, *norms, self.eps, *turns, *stored, slot, *sizes
            )
            rule = (self.windows[number], *no_rule)
            paged_attention.attend(
                query, *stored, *layout.places, *sizes, layer.scale, *rule, flat(mixed)
            )
            if layer is self.layers[-1]:  # of the others keys and values are all that is read
                x, mixed, normed = x[keep], mixed[keep], normed[: len(keep)]
                mixture = None if mixture is None else mixture.select(keep)
            layer.out.plus(mixed, x, mixture)
            kernels.norm(flat(x), layer.before_mlp.numbers, x.shape[1], self.eps, flat(normed))
            inner, other = layer.gate.times(normed, mixture), layer.up.times(normed, mixture)
            gated = torch.empty_like(inner)
            kernels.gate(flat(inner), flat(other), inner.shape[1], flat(gated))
            layer.down.plus(gated, x, mixture)
        return x

    @cached_property
    def is_whole(self) -> bool:
        """Return whether one call computes all layers: no adapters, and weights of one type."""
        linear = [one for layer in self.layers for one in layer.parts]
        ways = {one.product.way for one in linear}
        return len(ways) == 1 and all(one.adapted is None for one in linear)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return where the arrays of each layer begin [L, 18], and how many numbers they have."""
        arrays = [list(layer.arrays()) for layer in self.layers]
        addresses = [[array.ctypes.data for array in layer] for layer in arrays]
        counts = [[len(array) for array in layer] for layer in arrays]
        return np.array(addresses, np.uintp), np.array(counts, np.int64)

    def rows(self, lengths: Tensor, *, like: Tensor | None = None) -> Paged:
        """Return the layout of rows of these lengths [R] with a cache of their own.

        `like`: the cache's dtype.
        """
        model, width = self.model, -(-int(lengths.max()) // PAGE)
        table = torch.arange(len(lengths) * width, dtype=torch.int32).view(-1, width)
        cache = Cache(
            layers=model.num_layers, pages=table.numel(), heads=model.num_kv_heads,
            size=model.head_size, like=self.like if like is None else like,
        )  # fmt: skip
        return Paged(table, torch.zeros_like(lengths), lengths, cache=cache)

    def mixture(self, policies: list[LanguageModel], counts: Tensor) -> Mixture | None:
        """Return the adapters of rows of these policies with that many tokens each.

        None: nothing is added to the weights.
        """
        if self.model.adapter is None or self.merged:
            return None
        return make_mixture(policies, counts)

    def _follow(self) -> None:
        """Make again what was made of weights, if these have changed since.

        PyTorch counts the changes of a tensor, but not those of fused AdamW.
        """
        versions = [source._version for source in self.sources]
        if self.published or versions != self.versions:
            for derived in self.made:
                derived.follow()
        self.published, self.versions = False, versions

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
        cos, sin = self.rotary(self.like, position[None])
        return flat(cos[0].contiguous()), flat(sin[0].contiguous())

    def _made(self) -> Iterator[TiledProduct | _Scale]:
        """Yield what may hold copies of weights, which must follow them."""
        for layer in self.layers:
            yield from (linear.product for linear in layer.parts)
            yield from (layer.before_attention, layer.before_mlp, *layer.norms)
        yield from (self.last, self.head.product)

    @torch.no_grad()
    def _same(self) -> bool:
        """Return whether both ways give the same logits, for rows of 1, 20 and 5 tokens.

        They are also compared at positions beyond the model's original context, from which some
        models rotate or scale otherwise. Windows are taken from what the model's own layers ask
        for, as these rows may be too short to show them.
        """
        model, lengths = self.model, torch.tensor([1, 20, 5])
        layout, own = self.rows(lengths), self.rows(lengths, like=self.embedding)
        tokens = torch.arange(26) * 7919 % model.vocabulary
        keep = torch.arange(26)
        rules: dict[int, ScoreRule | None] = {}
        theirs = model.logits(tokens, own.position, layout=Observed(own, rules), keep=keep)
        for number, rule in rules.items():
            if rule is not None and (rule.window is None or not rule.is_window):
                raise Unlike("other scores")
            if rule is not None and rule.window is not None:
                self.windows[number] = rule.window
        mixture = self.mixture([model] * 3, lengths)
        for offset in dict.fromkeys((0, original_context(model.config))):
            if offset:
                layout, own = self.rows(lengths), self.rows(lengths, like=self.embedding)
                # Only rotations get other positions: pages are walked by those of the rows, which
                # `places` keeps.
                assert layout.places, "made before the positions change"
                layout.position = layout.position + offset
                theirs = model.logits(tokens, own.position + offset, layout=own, keep=keep)
            ours = self.logits(tokens, layout, keep=keep, mixture=mixture)
            theirs = theirs.float()
            if not bool((ours - theirs).norm() <= SAME[self.embedding.dtype] * theirs.norm()):
                return False
        return True


def plain(model: LanguageModel, *, alone: bool = False) -> Llama | None:
    """None where the model is built otherwise, or its weights are not on a CPU in one of `SAME`."""
    weight = next(model.model.parameters())
    if weight.device.type != "cpu" or weight.dtype not in SAME:
        return None
    if model.head_size % 8 or not model.samples_here:
        return None
    try:
        return Llama(model, alone=alone)
    except Unlike:
        return None
