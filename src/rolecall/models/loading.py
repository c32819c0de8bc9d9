"""Loads the models and tokenizers of bases, and rejects a model that would compute wrongly."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rolecall.agents.chat_template import Tokenizer
from rolecall.config.schema import Adapter
from rolecall.errors import first_line
from rolecall.models import embedded
from rolecall.models.attention import layouts
from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.cpu.fused_attention import fuse_heads
from rolecall.models.cpu.fused_layers import fuse
from rolecall.models.exact_head import make_exact
from rolecall.models.language_model import LanguageModel, heads_of, run
from rolecall.models.last_layer import trim

transformers_logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)
UNLIKE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)  # of foreign modules


def load_tokenizer(base: str) -> Tokenizer:
    """The tokenizer of a base. Raises ValueError where it or its chat template is missing."""
    path = locate(base)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"base {base!r} has no usable tokenizer: {first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ValueError(
            f"base {base!r} has no chat template, so its agents cannot be prompted; "
            "name a base with one, such as an instruct model"
        )
    return tokenizer


def load_model(
    base: str, *, device: torch.device, dtype: torch.dtype, fuses: bool = True
) -> PreTrainedModel:
    """The weights of a base, set up for flat rows. Raises ValueError where they are missing.

    `fuses`: on a CPU with loops of our own, whose weights PyTorch can then no longer free.
    """
    path = locate(base)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=layouts.NAME
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"base {base!r} cannot be loaded: {first_line(error)}") from error
    return set_up(model, base, device=device, fuses=fuses)


def set_up(model: Any, base: str, *, device: torch.device, fuses: bool) -> Any:
    """Change a model of transformers for flat rows, in place. Raises ValueError if it cannot be."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    window = getattr(model.config, "sliding_window", None)
    if window and not hasattr(model.config, "layer_types"):  # then it holds for every layer
        kinds = {"sliding_attention"}
    if kinds != {"full_attention"}:
        raise ValueError(
            f"base {base!r} has layers of {sorted(kinds)}; only full attention works: "
            "name a base that has no other"
        )
    model.name_or_path = model.config._name_or_path = base  # an export names it so
    model.to(device).eval()
    make_exact(model)
    if problem := _undrivable(model):
        raise ValueError(
            f"base {base!r} has an attention that cannot be computed here: {problem}; "
            "name another base"
        )
    if fuses:
        fuse(model)
    for change in (fuse_heads, trim) if fuses else (trim,):
        _try_out(model, change)
    return model


@torch.no_grad()
def _undrivable(model: Any) -> str:
    """Why our attention and cache do not compute what the model's own attention does, or ""."""
    try:
        _ = model.config.max_position_embeddings  # the context's length must be known
        ids = _probe_ids(model)
        ours = _probe(model, torch.arange(len(ids), device=ids.device))
        model.set_attn_implementation("eager")
        theirs = model(input_ids=ids[None], use_cache=False).logits[0].float()
        model.set_attn_implementation(layouts.NAME)
    except UNLIKE as error:
        return first_line(error)
    apart = float((ours - theirs).abs().max() / theirs.abs().max())
    return "" if apart <= _close(model) else f"logits differ by {apart:.2g} of the largest"


@torch.no_grad()
def _try_out(model: Any, change: Callable[[Any], Callable[[], None]]) -> None:
    """Change a model, and change it back if its logits are not what they were."""
    keep = torch.tensor([3, 9, 9, 10, 23], device=next(model.parameters()).device)
    before, back = _probe(model, keep), change(model)
    try:
        same = bool(
            (_probe(model, keep) - before).abs().max() <= _close(model) * before.abs().max()
        )
    except UNLIKE:
        same = False
    if not same:
        back()


def _probe_ids(model: Any) -> Tensor:
    embeddings: Tensor = model.get_input_embeddings().weight
    return torch.arange(24, device=embeddings.device) * 7919 % embeddings.shape[0]


def _probe(model: Any, keep: Tensor) -> Tensor:
    """Logits of a few tokens through our cache."""
    number, head_size = heads_of(model.config)
    cache = Cache(
        layers=model.config.num_hidden_layers, pages=2, heads=number, size=head_size,
        like=next(model.parameters()),
    )  # fmt: skip
    ids = _probe_ids(model)
    table = torch.tensor([[0, 1]], dtype=torch.int32, device=ids.device)
    start = torch.zeros(1, dtype=torch.long, device=ids.device)
    layout = Paged(table, start, start + len(ids), cache=cache)
    return run(model, ids, layout.position, layout=layout, keep=keep)[0]


def _close(model: Any) -> float:
    """The largest difference of logits that rounding makes, as a share of the largest."""
    return 1e-4 if next(model.parameters()).dtype == torch.float32 else 0.1


def with_adapters(
    model: PreTrainedModel, tokenizer: Tokenizer, adapters: dict[str, Adapter], *, seed: int
) -> dict[str, LanguageModel]:
    """One handle per adapter name, all over the same base weights."""
    from rolecall.models import lora

    # The prefix keeps PEFT from mistaking a policy's name for a part of its own `lora_`.
    internal = {name: f"policy-{name}" for name in adapters}
    peft_model = lora.attach(
        model, {internal[name]: adapter for name, adapter in adapters.items()}, seed=seed
    )
    return {name: LanguageModel(peft_model, tokenizer, adapter=internal[name]) for name in adapters}


def locate(base: str) -> str:
    """`tiny:NAME` is a model inside the package; then local folders; then a hub name."""
    if base.startswith("tiny:"):
        return str(embedded.folder(base.removeprefix("tiny:")))
    looks_local = base.startswith((".", "/", "~")) or base.count("/") != 1
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path)
    if looks_local or path.exists():
        raise ValueError(f"base {base!r}: there is no such model folder")
    return base
