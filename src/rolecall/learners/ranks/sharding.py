"""Gives each rank a share of every weight with PyTorch's FSDP2.

The decoder's layers are groups of their own, gathered one at a time; embeddings, the last norm and
the head are the root's, so tied weights are in one group. Gradients are summed over ranks, not
averaged: the learner divides them by the count of all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from rolecall.learners.forward import LogProbs
from rolecall.models.language_model import LanguageModel


def sharded(policy: LanguageModel, *, computes_in: torch.dtype | None) -> LogProbs:
    """Shard a policy's model in place; a forward pass of it is one of the module returned.

    `computes_in`: the dtype of passes, None for that of the weights. Gradients are summed in
    float32.
    """
    mesh = init_device_mesh(policy.device.type, (distributed.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=torch.float32)
    whole = LogProbs(policy)
    layers: Any = policy.model.get_decoder().layers
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    # The head computes chunks again in the backward pass, so the root stays gathered till then.
    fully_shard(whole, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return whole
