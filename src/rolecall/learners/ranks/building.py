"""Builds a rank's part of a learner: reads the weights, and shards them where ranks share them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rolecall.learners.forward import LogProbs
from rolecall.learners.ranks.member import Member
from rolecall.learners.ranks.sharded import ShardedMember
from rolecall.learners.ranks.spec import LearnerSpec
from rolecall.learners.ranks.ulysses import SharedRow
from rolecall.models.language_model import LanguageModel, get_layers
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.models.skeleton import Skeleton, fill_buffers, hollow, make_skeleton, name_in_file


def shard_model(
    policy: LanguageModel,
    *,
    device: torch.device,
    computes_in: torch.dtype | None,
    context_parallel: int = 1,
) -> LogProbs:
    """Shard a policy's model in place; a forward pass of it is one of the module returned.

    `computes_in`: the dtype of passes, None for that of the weights. Gradients are summed in
    float32. `context_parallel`: ranks that share a row.
    """
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=torch.float32)
    whole = LogProbs(policy) if context_parallel == 1 else SharedRow(policy, context_parallel)
    for layer in get_layers(policy.model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    # The head computes chunks again in the backward pass, so the root stays gathered till then.
    fully_shard(whole, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return whole


def read(whole: LogProbs, skeleton: Skeleton, *, device: torch.device) -> None:
    """Give a sharded model without weights its own shares of those in the files.

    What is no weight of the base (an adapter) keeps no number.
    """
    whole.to_empty(device=device)
    model = whole.policy.model
    named = {name_in_file(name): p.detach() for name, p in model.named_parameters()}
    weights = {name: p for name, p in named.items() if ".lora_" not in name}
    reader = HuggingFaceStorageReader(str(skeleton.folder))
    checkpoint.load(weights, storage_reader=reader)
    fill_buffers(model, skeleton)
    whole.policy.device = device


def give(parameter: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, which every rank has, into the shares of a sharded one."""
    assert isinstance(parameter, DTensor)
    value = value.to(parameter.device, parameter.dtype)
    with torch.no_grad():
        shares = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.to_local().copy_(shares.to_local())


ADAPTER = "trained"  # its name on the ranks, where a base has one adapter


def built_member(spec: LearnerSpec, device: torch.device) -> Member:
    """Build the member of a spec; raises ValueError if a base cannot be loaded."""
    return _replicated(spec, device) if spec.kind == "replicated" else _sharded(spec, device)


def _replicated(spec: LearnerSpec, device: torch.device) -> Member:
    model = _loaded(spec, spec.base, device, adapted=True)
    reference: LanguageModel | Literal["base"] | None = None
    if spec.reference == "initial":
        reference = "base" if spec.adapter is not None else model.frozen_copy()
    elif spec.reference is not None:
        reference = _loaded(spec, spec.reference, device, adapted=False)
    return Member(
        model,
        spec.optimizer,
        total_updates=spec.total_updates,
        reference=reference,
        head=spec.head,
        heads=spec.heads,
        checkpoint_activations=spec.checkpoint_activations,
        share_prefixes=spec.share_prefixes,
        offloads=spec.offloads,
    )


def _sharded(spec: LearnerSpec, device: torch.device) -> Member:
    model, own_pass = _shares(spec, spec.base, device, trained=True)
    reference: LanguageModel | Literal["base"] | None = None
    reference_pass = None
    if spec.reference == "initial" and spec.adapter is not None:
        reference = "base"
    elif spec.reference is not None:
        base = spec.base if spec.reference == "initial" else spec.reference
        reference, reference_pass = _shares(spec, base, device, trained=False)
    return ShardedMember(
        model,
        spec.optimizer,
        total_updates=spec.total_updates,
        reference=reference,
        head=spec.head,
        heads=spec.heads,
        checkpoint_activations=spec.checkpoint_activations,
        share_prefixes=spec.share_prefixes,
        offloads=spec.offloads,
        own_pass=own_pass,
        reference_pass=reference_pass,
        dtype=getattr(torch, spec.dtype),
        context_parallel=spec.context_parallel,
    )


def _shares(
    spec: LearnerSpec, base: str, device: torch.device, *, trained: bool
) -> tuple[LanguageModel, LogProbs]:
    """Build a model of which this rank holds its shares, and the pass that gathers them.

    No rank ever holds the whole model if its files name the weights as the model does.
    """
    dtype = getattr(torch, spec.dtype)
    has_masters = trained and spec.adapter is None and dtype != torch.float32
    computes_in = dtype if has_masters else None
    skeleton = make_skeleton(base, device=device, dtype=dtype)
    if skeleton is None:
        model = _loaded(spec, base, device, adapted=trained)
        if model.capabilities.has_separate_rows:
            raise ValueError(
                f"base {base!r} is computed row by row, which ranks of fsdp cannot do in step; "
                "set learner.name=replicated"
            )
        first = {}
    else:
        model = _hollow(spec, base, skeleton, adapted=trained)
        first = {n: p.detach() for n, p in model.named_parameters() if model.adapter is not None}
        model.model.to("meta")
    if has_masters:
        model.model.float()  # FSDP keeps these, and computes with copies in the other dtype
    model.model.requires_grad_(trained and model.adapter is None)
    for _, parameter in model.named_parameters():
        parameter.requires_grad_(trained)
    own_pass = shard_model(
        model, device=device, computes_in=computes_in, context_parallel=spec.context_parallel
    )
    if skeleton is not None:
        read(own_pass, skeleton, device=device)
        for name, parameter in model.named_parameters():
            if name in first:
                give(parameter, first[name])
    return model, own_pass


def _hollow(spec: LearnerSpec, base: str, skeleton: Skeleton, *, adapted: bool) -> LanguageModel:
    """Build the model without its weights, and an adapter's first ones."""
    tokenizer = load_tokenizer(base, chat_template=spec.chat_template)
    if not adapted or spec.adapter is None:
        return LanguageModel(skeleton.loaded, tokenizer)
    hollow(skeleton.loaded.model)
    adapters = with_adapters(skeleton.loaded, tokenizer, {ADAPTER: spec.adapter}, seed=spec.seed)
    return adapters[ADAPTER]


def _loaded(spec: LearnerSpec, base: str, device: torch.device, *, adapted: bool) -> LanguageModel:
    """Load a model, with the policy's adapter if `adapted` and if it has one."""
    tokenizer = load_tokenizer(base, chat_template=spec.chat_template)
    model = load_model(
        base,
        device=device,
        dtype=getattr(torch, spec.dtype),
        sampled=False,
        fuses=spec.kind == "replicated",
    )
    if not adapted or spec.adapter is None:
        return LanguageModel(model, tokenizer)
    adapters = with_adapters(model, tokenizer, {ADAPTER: spec.adapter}, seed=spec.seed)
    return adapters[ADAPTER]
