"""Gives each rank a share of every weight with PyTorch's FSDP2.

The decoder's layers are groups of their own, gathered one at a time; embeddings, the last norm and
the head are the root's, so tied weights are in one group. Gradients are summed over ranks, not
averaged: the learner divides them by the count of all ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rolecall.learners.forward import LogProbs
from rolecall.learners.ranks.ulysses import SharedRow
from rolecall.models.language_model import LanguageModel, get_layers
from rolecall.models.skeleton import Skeleton, fill_buffers, name_in_file


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
