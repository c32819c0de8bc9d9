"""Builds a rank's part of a learner: reads the weights, and shards them where ranks share them."""

from __future__ import annotations

from typing import Literal

import torch

from rolecall.learners.ranks.member import Member
from rolecall.learners.ranks.sharded import ShardedMember
from rolecall.learners.ranks.sharding import sharded
from rolecall.learners.ranks.spec import LearnerSpec
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters

ADAPTER = "trained"  # its name on the ranks, where a base has one adapter


def built_member(spec: LearnerSpec) -> Member:
    """Raises ValueError where a base cannot be loaded."""
    return _replicated(spec) if spec.kind == "replicated" else _sharded(spec)


def this_device() -> torch.device:
    """Of this rank."""
    if torch.distributed.get_backend() == "gloo" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _replicated(spec: LearnerSpec) -> Member:
    model = _loaded(spec, spec.base, adapted=True)
    reference: LanguageModel | Literal["base"] | None = None
    if spec.reference == "initial":
        reference = "base" if spec.adapter is not None else model.frozen_copy()
    elif spec.reference is not None:
        reference = _loaded(spec, spec.reference, adapted=False)
    return Member(
        model,
        spec.optimizer,
        total_updates=spec.total_updates,
        reference=reference,
        head=spec.head,
        checkpoint_activations=spec.checkpoint_activations,
        share_prefixes=spec.share_prefixes,
        offloads=spec.offloads,
    )


def _sharded(spec: LearnerSpec) -> Member:
    model = _loaded(spec, spec.base, adapted=True)
    masters = spec.dtype == "bfloat16" and spec.adapter is None
    if masters:
        model.model.float()  # FSDP keeps these, and computes with bfloat16 copies
    own_pass = sharded(model, computes_in=torch.bfloat16 if masters else None)
    reference: LanguageModel | Literal["base"] | None = None
    reference_pass = None
    if spec.reference == "initial" and spec.adapter is not None:
        reference = "base"
    elif spec.reference is not None:
        base = spec.base if spec.reference == "initial" else spec.reference
        reference = _loaded(spec, base, adapted=False)
        reference.model.requires_grad_(False)
        reference_pass = sharded(reference, computes_in=None)
    return ShardedMember(
        model,
        spec.optimizer,
        total_updates=spec.total_updates,
        reference=reference,
        head=spec.head,
        checkpoint_activations=spec.checkpoint_activations,
        share_prefixes=spec.share_prefixes,
        offloads=spec.offloads,
        own_pass=own_pass,
        reference_pass=reference_pass,
        dtype=getattr(torch, spec.dtype),
    )


def _loaded(spec: LearnerSpec, base: str, *, adapted: bool) -> LanguageModel:
    """`adapted`: with the policy's adapter, if it has one."""
    tokenizer = load_tokenizer(base)
    model = load_model(
        base,
        device=this_device(),
        dtype=getattr(torch, spec.dtype),
        fuses=spec.kind == "replicated",
    )
    if not adapted or spec.adapter is None:
        return LanguageModel(model, tokenizer)
    adapters = with_adapters(model, tokenizer, {ADAPTER: spec.adapter}, seed=spec.seed)
    return adapters[ADAPTER]
