"""Makes a model's layers keep no activations; the backward pass computes them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.nn import Module
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def recompute_activations(model: Module) -> Iterator[None]:
    """Keep only each layer's input in forward passes.

    transformers checkpoints in training mode alone, so the layers themselves are set to it, but not
    what is inside them: dropout stays off.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    assert layers, f"{type(model).__name__} has no layer that transformers can checkpoint"
    for layer in layers:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        layer.gradient_checkpointing = layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False
