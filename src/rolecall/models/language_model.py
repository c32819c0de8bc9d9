"""Wraps a transformers model, its tokenizer and an adapter as the one handle of a policy.

The learner and the embedded engine hold the same handle, so that what is trained is what samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, float32
from torch.nn import Module, ModuleList, Parameter
from transformers import AutoModelForCausalLM

from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.turn_form import stop_ids
from rolecall.models.attention import layouts
from rolecall.models.loaded_model import LoadedModel, ModelCapabilities
from rolecall.models.row_rope import rows_told_apart
from rolecall.models.separate_rows import read_rows
from rolecall.models.tokenizers import num_tokens

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel

    from rolecall.models.lora import Mixture


class LanguageModel:
    """A policy's model: flat rows of tokens in, logits out."""

    def __init__(
        self,
        loaded: LoadedModel,
        tokenizer: Tokenizer,
        *,
        adapter: str | None = None,
        frozen: bool = False,
    ) -> None:
        self.loaded = loaded
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.frozen = frozen  # a copy that no learner trains
        # Of a model that also sees, its language's.
        self.config: PretrainedConfig = self.model.config.get_text_config()
        self.device = next(self.model.parameters()).device
        self.num_layers: int = self.config.num_hidden_layers
        # Of the cache, where the embedded engine samples.
        self.num_kv_heads, self.head_size = (
            get_key_value_heads(self.config) if self.samples_here else (0, 0)
        )
        self.max_length: int = self.config.max_position_embeddings

    @property
    def model(self) -> PreTrainedModel | PeftModel:
        return self.loaded.model

    @property
    def capabilities(self) -> ModelCapabilities:
        return self.loaded.capabilities

    @property
    def is_float32(self) -> bool:
        """Return whether it computes in float32."""
        return next(self.model.parameters()).dtype == float32

    @property
    def shares_prefixes(self) -> bool:
        """Return whether rows that begin alike may stand in one prefix tree.

        They may not where rows are computed alone, nor where a row's length decides how its
        positions are rotated: what begins alike is then not computed alike.
        """
        return self.samples_here and self.capabilities.rope_limit is None

    @property
    def samples_here(self) -> bool:
        """Return whether the embedded engine can sample it; if not, `engine: vllm` must."""
        return not self.capabilities.has_separate_rows

    @property
    def hidden_size(self) -> int:
        size: int = self.config.hidden_size
        return size

    @cached_property
    def vocabulary(self) -> int:
        """Ids that can be sampled: those of the tokenizer that the head has a logit for.

        Heads are padded, as that of Qwen3 is by 267 ids. What these would be decoded to is nothing,
        so their logits are left out wherever tokens are sampled or trained.
        """
        padded: int = self.model.get_output_embeddings().weight.shape[0]
        return min(padded, num_tokens(self.tokenizer) or padded)

    @property
    def end_ids(self) -> list[int]:
        """Ids after which an assistant message is over."""
        generation = getattr(self.model, "generation_config", None)
        return stop_ids(self.tokenizer, getattr(generation, "eos_token_id", None) or [])

    def logits(
        self, tokens: Tensor, positions: Tensor, *, layout: layouts.Layout, keep: Tensor
    ) -> Tensor:
        """Compute float32 logits [len(keep), V] after the kept indices.

        tokens and positions [N].
        """
        return self.forward(tokens, positions, layout=layout, keep=keep)[0]

    def logprobs(self, ids: Tensor) -> Tensor:
        """Return the logprobs [N - 1] of a row [N] at temperature 1, without the first token's."""
        layout = layouts.Rows([len(ids)], device=ids.device)
        keep = torch.arange(len(ids) - 1, device=ids.device)
        logits = self.logits(ids, layout.position, layout=layout, keep=keep)
        return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]

    def mixed_logits_of_rows(
        self,
        tokens: Tensor,
        positions: Tensor,
        *,
        mixture: Mixture,
        layout: layouts.Layout,
        keep: Tensor,
    ) -> Tensor:
        """Return `logits` with the adapter that the mixture names for each token, not this
        policy's.
        """
        from rolecall.models import lora

        with lora.use_mixture(mixture):
            # Each layer's adapters are told the rows of all tokens.
            logits, _ = run(self.loaded, tokens, positions, layout=layout, keep=keep, trims=False)
            return logits[:, : self.vocabulary]

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        *,
        layout: layouts.Layout,
        keep: Tensor,
        hidden: bool = False,
        adapter_off: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return float32 logits [len(keep), V] and, if asked for, what the head read to make them.

        The hidden states [len(keep), hidden_size] are float32 and differentiable. `adapter_off`
        computes with the frozen base alone: ValueError for a policy that has no adapter.
        """
        with self.using(adapter_off=adapter_off):
            if self.capabilities.has_separate_rows:
                output = run_apart(self.model, tokens, layout=layout, keep=keep, hidden=hidden)
            else:
                output = run(
                    self.loaded, tokens, positions, layout=layout, keep=keep, hidden=hidden
                )
        logits, states = output
        return logits[:, : self.vocabulary], states

    def states(
        self, tokens: Tensor, positions: Tensor, *, layout: layouts.Layout, keep: Tensor
    ) -> Tensor:
        """Return what `head` reads after the kept indices: [len(keep), hidden_size]."""
        return hidden_states(self.loaded, tokens, positions, layout=layout, keep=keep)

    def head(self, states: Tensor) -> Tensor:
        """Compute [M, hidden_size] -> logits [M, V]; those of the model unless `scales_logits`."""
        logits: Tensor = self.model.get_output_embeddings()(states)
        return logits[:, : self.vocabulary]

    @contextmanager
    def using(self, *, adapter_off: bool = False) -> Iterator[None]:
        """Forward passes inside compute with this policy's adapter, or with the frozen base alone.

        Raises ValueError where there is no adapter to switch off.
        """
        if not adapter_off:
            if self.adapter is not None and self.model.active_adapter != self.adapter:
                self.model.set_adapter(self.adapter, inference_mode=self.frozen)
            yield
            return
        if self.adapter is None:
            raise ValueError("adapter_off: this policy trains all weights, it has no adapter")
        from rolecall.models import lora

        with lora.use_mixture(lora.Mixture([], [], device=self.device)):
            yield

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters this policy may train: all weights, or only those of its adapter."""
        for name, parameter in self.model.named_parameters():
            if self.adapter is None or f".{self.adapter}." in name:
                yield name, parameter

    def weights(self) -> dict[str, Tensor]:
        """Return what an update changes, by name: the very tensors, detached, not copies."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def take(self, weights: dict[str, Tensor]) -> None:
        """Copy the `weights` of another handle of this policy into this one, in place."""
        mine = self.weights()
        if missing := sorted(mine.keys() - weights.keys()):
            raise ValueError(f"the weights to take lack {missing}")
        if unknown := sorted(weights.keys() - mine.keys()):
            raise ValueError(f"the weights to take have unknown names {unknown}")
        for name, tensor in mine.items():
            tensor.copy_(weights[name])

    def frozen_copy(self) -> LanguageModel:
        """Return a policy of the same weights, which later updates of this one do not reach."""
        return copies({"": self})[""]

    def save(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` reads: a whole model, or a PEFT adapter."""
        self.write_weights(folder)
        self.tokenizer.save_pretrained(folder)

    def write_weights(self, folder: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write what an update changes as `save` does; `weights`: others of the same names."""
        if self.adapter is None:
            self.model.save_pretrained(folder, state_dict=weights)
        else:
            from rolecall.models import lora

            lora.save(self.model, self.adapter, folder, weights)

    def load(self, folder: Path) -> None:
        """Take over the weights that `save` wrote. Raises ValueError where they do not fit."""
        if self.adapter is None:
            saved = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
            return
        from rolecall.models import lora

        lora.load(self.model, self.adapter, folder)


def run(
    loaded: LoadedModel,
    tokens: Tensor,
    positions: Tensor,
    *,
    layout: layouts.Layout,
    keep: Tensor,
    hidden: bool = False,
    trims: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute `LanguageModel.forward`; `trims`: not in the last layer what no logit needs."""
    model, capabilities = loaded.model, loaded.capabilities
    is_trimmed = trims and capabilities.is_trimmed
    kept = {"keep": keep, "logits_to_keep": 0} if is_trimmed else {"logits_to_keep": keep}
    with (
        _inputs(model.get_output_embeddings() if hidden else None) as read,
        rows_told_apart(capabilities.rope_limit, layout),
    ):
        out = model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            layout=layout,
            **kept,
        )
    return out.logits[0].float(), read[0][0].float() if hidden else None


def hidden_states(
    loaded: LoadedModel,
    tokens: Tensor,
    positions: Tensor,
    *,
    layout: layouts.Layout,
    keep: Tensor,
) -> Tensor:
    """Return what a model's head reads after the kept indices, if nothing stands between."""
    decoder, capabilities = loaded.model.get_decoder(), loaded.capabilities
    if capabilities.has_separate_rows:
        [rows] = read_rows(
            lambda row, places: (decoder(row, use_cache=False).last_hidden_state[0, places],),
            tokens, layout=layout, keep=keep,
        )  # fmt: skip
        return rows
    with rows_told_apart(capabilities.rope_limit, layout):
        out = decoder(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, layout=layout,
            **({"keep": keep} if capabilities.is_trimmed else {}),
        )  # fmt: skip
    states: Tensor = out.last_hidden_state[0]
    return states if capabilities.is_trimmed else states[keep]


def run_apart(
    model: PreTrainedModel,
    tokens: Tensor,
    *,
    layout: layouts.Layout,
    keep: Tensor,
    hidden: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Do as `run` for a model that must be given one row at a time."""
    head = model.get_output_embeddings() if hidden else None

    def read(row: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        with _inputs(head) as inputs:
            out = model(input_ids=row, use_cache=False, logits_to_keep=places)
        return out.logits[0].float(), *(states[0].float() for states in inputs)

    logits, *inputs = read_rows(read, tokens, layout=layout, keep=keep)
    return logits, inputs[0] if hidden else None


@contextmanager
def _inputs(module: Module | None) -> Iterator[list[Tensor]]:
    """Collect what a module reads. `output_hidden_states` would hold the states of every layer."""
    read: list[Tensor] = []
    if module is None:
        yield read
        return
    hook = module.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    try:
        yield read
    finally:
        hook.remove()


def mixed_logits(
    rows: list[LanguageModel],
    tokens: Tensor,
    positions: Tensor,
    *,
    counts: Tensor,
    layout: layouts.Layout,
    keep: Tensor,
) -> Tensor:
    """Return `logits` for rows of policies that share a model; `counts`: how many tokens each row
    has.
    """
    first = rows[0]
    if len({model.adapter for model in rows}) == 1:
        return first.logits(tokens, positions, layout=layout, keep=keep)
    mixture = make_mixture(rows, counts)
    return first.mixed_logits_of_rows(tokens, positions, mixture=mixture, layout=layout, keep=keep)


def make_mixture(rows: list[LanguageModel], counts: Tensor) -> Mixture:
    """Whose adapter each token has, where each row has one; `counts` as in `mixed_logits`."""
    from rolecall.models.lora import Mixture

    return Mixture(_adapters(rows), counts.tolist(), device=rows[0].device)


def mixture_over(models: list[LanguageModel], policy: Tensor) -> Mixture:
    """Return the adapters of tokens whose models `policy` [N] names; `policy` may change."""
    from rolecall.models.lora import Mixture

    return Mixture.over(_adapters(models), owner=policy)


def _adapters(models: list[LanguageModel]) -> list[str]:
    names = [model.adapter for model in models if model.adapter is not None]
    assert len(names) == len(models), "policies that train all weights share no model"
    return names


def copies(models: dict[str, LanguageModel]) -> dict[str, LanguageModel]:
    """Frozen copies of all handles; adapters that share a base share one copy of it."""
    copied: dict[int, LoadedModel] = {}
    for model in models.values():
        if id(model.model) not in copied:
            frozen = deepcopy(model.model).requires_grad_(False).eval()
            copied[id(model.model)] = replace(model.loaded, model=frozen)
    return {
        name: LanguageModel(
            copied[id(model.model)], model.tokenizer, adapter=model.adapter, frozen=True
        )
        for name, model in models.items()
    }


def has_dynamic_rope(config: PretrainedConfig) -> bool:
    """Return whether a row's length decides by how much its positions are rotated."""
    return any(rope.get("rope_type") in ("dynamic", "longrope") for rope in _ropes(config))


def has_longrope(config: PretrainedConfig) -> bool:
    """Return whether rows beyond the original context are rotated by factors of their own."""
    return any(rope.get("rope_type") == "longrope" for rope in _ropes(config))


def original_context(config: PretrainedConfig) -> int:
    """Return the positions from which a model may compute otherwise than before; 0 if it says none.

    Some rotate by other factors there, some scale their queries.
    """
    return int(max(rope.get("original_max_position_embeddings") or 0 for rope in _ropes(config)))


def _ropes(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Return the settings of a model's rotary embedding, and of each kind of layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(settings for settings in rope.values() if isinstance(settings, dict))]


def get_layers(model: PreTrainedModel) -> ModuleList:
    """Return the layers of a model of transformers, whatever its family calls them.

    Raises ValueError for a model that keeps no list of them.
    """
    number = model.config.get_text_config().num_hidden_layers
    for module in model.modules():  # outer ones first, so before the experts of a layer
        if isinstance(module, ModuleList) and len(module) == number:
            return module
    raise ValueError(f"{type(model).__name__} keeps no list of its {number} layers")


def get_key_value_heads(config: PretrainedConfig) -> tuple[int, int]:
    """Return the number of key-value heads and their size; 0 where no single number says it."""
    try:
        heads: int = getattr(config, "num_attention_heads", None) or 0
        number: int = getattr(config, "num_key_value_heads", None) or heads
        size: int = getattr(config, "head_dim", None) or 0
    except (
        AttributeError,
        RuntimeError,
        ValueError,
    ):  # of a family whose layers have different ones
        return 0, 0
    if getattr(config, "multi_query", False):
        number = 1
    return number, size or (config.hidden_size // heads if heads else 0)
