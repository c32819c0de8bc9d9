"""Lets weights be loaded again into a model that vLLM has laid out for a CPU's kernels.

On a CPU vLLM packs matrices, convolutions and experts once, when a model is loaded, and whatever is
loaded later would be read as if it were packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.utils import replace_parameter

UNPACKED = "_cpu_unpacked_conv_weight"  # where vLLM keeps a convolution as files have it
PACKED = "_packed_experts"  # what packs a layer's experts, and their shapes in files
EXPERTS = ("w13_weight", "w2_weight")

_pack = utils.dispatch_cpu_unquantized_gemm
_pack_experts = CPUUnquantizedExperts.process_weights_after_loading


def prepare() -> None:
    """Before a model is made: matrices stay as they are, and packed experts are noted."""
    utils.dispatch_cpu_unquantized_gemm = _plain
    CPUUnquantizedExperts.process_weights_after_loading = _note_and_pack


@contextmanager
def unpacked(model: Any) -> Iterator[None]:
    """Weights can be loaded into the model inside; afterwards they are packed again."""
    modules = list(model.modules())
    convolutions = [each for each in modules if hasattr(each, UNPACKED)]
    layers = [each for each in modules if hasattr(each, PACKED)]
    for convolution in convolutions:
        convolution.weight.data = getattr(convolution, UNPACKED)[:, None]
    for layer in layers:
        for name, shape in getattr(layer, PACKED)[1].items():
            replace_parameter(layer, name, getattr(layer, name).new_empty(shape))
    yield
    for convolution in convolutions:
        _pack(convolution, False)
    for layer in layers:
        _pack_experts(getattr(layer, PACKED)[0], layer)


def _plain(layer: Any, remove_weight: bool) -> None:
    """Instead of `_pack`, which makes a copy of a matrix that no later load reaches. It costs what
    oneDNN's packed products save.
    """
    if layer.weight.ndim == 2:
        layer.cpu_linear = torch.nn.functional.linear
    else:
        _pack(layer, remove_weight)


def _note_and_pack(experts: Any, layer: Any) -> None:
    setattr(layer, PACKED, (experts, {name: getattr(layer, name).shape for name in EXPERTS}))
    _pack_experts(experts, layer)
