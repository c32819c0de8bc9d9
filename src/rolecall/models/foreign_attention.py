"""Finds out whether our layouts compute what a model's own attention does, layer by layer.

A model is never trusted for its name. Its logits through our cache are compared with those of its
own attention, for two rows in one pass: so layers show that let rows reach each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from rolecall.core.errors import first_line
from rolecall.models.attention import layouts
from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.attention.score_rule import Observed, ScoreRule
from rolecall.models.cpu.fused_layers import put_before
from rolecall.models.language_model import (
    get_key_value_heads,
    get_layers,
    hidden_states,
    original_context,
    run,
    run_apart,
)
from rolecall.models.loaded_model import LoadedModel

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def carry(model: PreTrainedModel) -> None:
    """Change the layers of a model in place."""
    put_before(list(get_layers(model)), Carrying)


class Carrying(Module):
    """Stands before a layer's class, and also brings the layout when a backward pass repeats it."""

    def forward(self, *args: Tensor, **options: Any) -> Any:
        with layouts.use_layout(options.pop("layout", None)):
            return super().forward(*args, **options)


UNLIKE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)  # of foreign modules
LENGTHS = (24, 9)  # tokens of the probe's rows
WINDOW = 6  # of sliding layers while they are tried out, whatever it is
KNOWN = {"full_attention", "sliding_attention"}
# Keys of transformers' configs that say how far a token sees, in other ways than a window does.
REACHES = (
    "attention_chunk_size", "attention_window", "attention_window_size", "block_size", "chunk_size",
    "index_topk", "keep_window_size", "window_size",
)  # fmt: skip
SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")  # keys of such configs

Rules = Mapping[int, ScoreRule | None]  # by layer


@torch.no_grad()
def examine(loaded: LoadedModel) -> tuple[str, Rules]:
    """Return why the model's rows must be computed one by one, or "", and its layers' rules.

    If they must be, the model's own attention is switched on.
    """
    model = loaded.model
    rules: Rules = {}
    try:
        problem = _unknown(model)
        if not problem:
            problem, rules = _compare(loaded)
            if problem == layouts.NOT_HANDED_ON and hasattr(model.get_decoder(), "layers"):
                carry(model)
                problem, rules = _compare(loaded)
            problem = problem or _wrong_window(loaded, rules)
            if problem:
                problem = f"an attention that cannot be computed here ({problem})"
    except UNLIKE as error:
        problem = f"an attention that cannot be tried out ({first_line(error)})"
    if problem and model.config._attn_implementation == layouts.NAME:
        _switch(model, "sdpa", "eager")
    return problem, rules


def _unknown(model: PreTrainedModel) -> str:
    """Return what of a model's config no layout computes, or ""."""
    config = model.config.get_text_config()
    kinds = sorted({*(getattr(config, "layer_types", None) or [])} - KNOWN)
    if kinds:
        return f"layers of {kinds}"
    keys = [key for key in REACHES if getattr(config, key, None)]
    if keys:
        return f"an attention of another reach ({keys[0]})"
    own = model.config._attn_implementation != layouts.NAME
    return "an attention of its own" if own else ""


def _compare(loaded: LoadedModel) -> tuple[str, Rules]:
    """Return what is wrong with our logits of the probe, or "", and each layer's rule."""
    model = loaded.model
    try:
        ours, rules = _in_two_passes(loaded)
        theirs = _own(model)
    except UNLIKE as error:
        return first_line(error), {}
    finally:
        model.set_attn_implementation(layouts.NAME)
    if missing := model.config.get_text_config().num_hidden_layers - len(rules):
        return f"{missing} layers compute without it", rules
    apart = _difference(model, ours, theirs)
    return "" if apart <= close(model) else f"logits differ by {apart:.2g} of the largest", rules


def _difference(model: PreTrainedModel, ours: Tensor, theirs: Tensor) -> float:
    """Return the difference of any token in float32, as a share of the largest logit.

    Where less is stored, rounding makes some tokens choose other experts. So the median over the
    tokens of each row and pass counts: what is computed wrongly shows in most of them.
    """
    by_token = (ours - theirs).abs().amax(1) / theirs.abs().max()
    if by_token.isnan().any() or next(model.parameters()).dtype == torch.float32:
        return float(by_token.max())
    parts = by_token.split(
        [count for n in LENGTHS for count in (_read_first(n), n - _read_first(n))]
    )
    return max(float(count.median()) for count in parts)


def _read_first(length: int) -> int:
    """Return how many tokens of a row the first pass reads."""
    return length * 3 // 4


def _wrong_window(loaded: LoadedModel, rules: Rules) -> str:
    """Return how a window is computed unlike in the model's own attention, or "".

    Rows seldom reach a real window, so the probe is made again with a short one. Both sides must
    have seen it, or nothing is known.
    """
    model = loaded.model
    windowed = [layer for layer, rule in rules.items() if rule is not None and rule.window]
    windows = {rule.window for rule in rules.values() if rule is not None and rule.window}
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) or 0
    if not (windows or window or "sliding_attention" in kinds):
        return ""
    if min(windows | {window}) >= config.max_position_embeddings:
        return ""
    long = _own(model)
    model.set_attn_implementation(layouts.NAME)
    with _short_windows(model):
        problem, short_rules = _compare(loaded)
        short = _own(model)
    model.set_attn_implementation(layouts.NAME)
    if problem:
        return f"with a window of {WINDOW} tokens: {problem}"
    seen = [
        layer for layer, rule in short_rules.items() if rule is not None and rule.window == WINDOW
    ]
    changed = bool((long - short).abs().max() > 0)
    if seen != windowed or (windows and not changed and windows != {WINDOW}):
        return "its window cannot be tried out"
    return ""


@contextmanager
def _short_windows(model: PreTrainedModel) -> Iterator[None]:
    holders = [model.config.get_text_config(), *model.modules()]
    before = [(x, w) for x in holders if isinstance(w := getattr(x, "sliding_window", None), int)]
    for holder, _ in before:
        holder.sliding_window = WINDOW
    try:
        yield
    finally:
        for holder, window in before:
            holder.sliding_window = window


@torch.no_grad()
def untrainable(model: PreTrainedModel) -> str:
    """Return why a model with its own attention cannot be trained row by row, or ""."""
    try:
        rows = layouts.Rows(list(LENGTHS), device=model.device)
        ids = _ids(model)
        keep = torch.tensor([3, 9, 23, 26, 32], device=model.device)
        ours = run_apart(model, ids, layout=rows, keep=keep)[0]
        theirs = _own(model)[keep]
        changed = ids.clone()
        changed[[23, 32]] = ids[[22, 31]]
        later = run_apart(model, changed, layout=rows, keep=keep)[0]
    except UNLIKE as error:
        return first_line(error)
    largest = theirs.abs().max()
    if not bool((ours - theirs).abs().max() <= close(model) * largest):
        return "its logits depend on which of them are asked for"
    early = [0, 1, 3]
    if not bool((later - ours)[early].abs().max() <= close(model) * largest):
        return "its tokens see those after them"
    return ""


def _own(model: PreTrainedModel) -> Tensor:
    """Logits of the probe's rows one by one, by the model's own attention: [sum(LENGTHS), V]."""
    if model.config._attn_implementation == layouts.NAME:
        _switch(model, "eager")
    parts = _ids(model).split(LENGTHS)
    return torch.cat(
        [model(input_ids=row[None], use_cache=False).logits[0] for row in parts]
    ).float()


@torch.no_grad()
def scales_logits(loaded: LoadedModel) -> bool:
    """Return whether the logits are anything but the head applied to the decoder's states."""
    model = loaded.model
    if any(getattr(model.config.get_text_config(), name, None) for name in SCALES):
        return True
    layout, ids = layouts.Rows(list(LENGTHS), device=model.device), _ids(model)
    keep = torch.tensor([3, 23, 32], device=model.device)
    try:
        states = hidden_states(loaded, ids, layout.position, layout=layout, keep=keep)
        plain = model.get_output_embeddings()(states).float()
    except UNLIKE:
        return True
    if loaded.capabilities.has_separate_rows:
        logits = run_apart(model, ids, layout=layout, keep=keep)[0]
    else:
        logits = run(loaded, ids, layout.position, layout=layout, keep=keep)[0]
    return not bool((plain - logits).abs().max() <= 1e-3 * logits.abs().max())


def can_switch(model: PreTrainedModel) -> bool:
    """Return whether another attention can be switched on; transformers keeps some silently."""
    try:
        _switch(model, "eager")
    except ValueError:
        return False
    model.set_attn_implementation(layouts.NAME)
    return True


def _switch(model: PreTrainedModel, *names: str) -> None:
    """Switch to the first of these attentions that the model has. Raises ValueError for none."""
    for name in names:
        with suppress(ValueError):
            model.set_attn_implementation(name)
        if model.config._attn_implementation == name:
            return
    raise ValueError(f"it has no attention called {names}")


def _ids(model: PreTrainedModel) -> Tensor:
    size = model.get_input_embeddings().weight.shape[0]
    return torch.arange(sum(LENGTHS), device=model.device) * 7919 % size


def probe(loaded: LoadedModel, keep: Tensor) -> Tensor:
    """Logits of the probe's rows through our cache, in one pass.

    Where a model has an original context they are computed again with positions beyond it.
    """
    model, logits = loaded.model, []
    for offset in dict.fromkeys((0, original_context(model.config.get_text_config()))):
        paged = _paged(model, _cache(model), [0, 0], list(LENGTHS))
        logits.append(run(loaded, _ids(model), paged.position + offset, layout=paged, keep=keep)[0])
    return torch.cat(logits)


def _in_two_passes(loaded: LoadedModel) -> tuple[Tensor, Rules]:
    """Return the logits of all tokens, the last ones from a second pass, and each layer's rule."""
    model = loaded.model
    cache, first = _cache(model), [_read_first(length) for length in LENGTHS]
    rules: dict[int, ScoreRule | None] = {}
    rows = _ids(model).split(LENGTHS)
    parts: list[list[Tensor]] = []
    for starts, ends in (([0, 0], first), (first, list(LENGTHS))):
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        ids = [row[start:end] for row, start, end in zip(rows, starts, ends, strict=True)]
        paged = _paged(model, cache, starts, counts)
        keep = torch.arange(sum(counts), device=model.device)
        layout = Observed(paged, rules)
        logits = run(loaded, torch.cat(ids), paged.position, layout=layout, keep=keep)[0]
        parts.append(list(logits.split(counts)))
    return torch.cat([torch.cat(row) for row in zip(*parts, strict=True)]), rules


def _paged(model: PreTrainedModel, cache: Cache, starts: list[int], counts: list[int]) -> Paged:
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=model.device)
    tensors = (torch.tensor(numbers, device=model.device) for numbers in (starts, counts))
    return Paged(table, *tensors, cache=cache)


def _cache(model: PreTrainedModel) -> Cache:
    config = model.config.get_text_config()
    number, size = get_key_value_heads(config)
    if not number or not size:
        raise ValueError("its layers have no heads of one size")
    return Cache(
        layers=config.num_hidden_layers, pages=4, heads=number, size=size,
        like=next(model.parameters()),
    )  # fmt: skip


def close(model: PreTrainedModel) -> float:
    """Return the largest difference of logits that rounding makes, as a share of the largest."""
    return 1e-4 if next(model.parameters()).dtype == torch.float32 else 0.1
