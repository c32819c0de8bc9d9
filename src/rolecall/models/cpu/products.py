"""Multiplies states with a weight by PyTorch's products.

PyTorch's own product of float32 matrices is MKL's. oneDNN has another one, which also takes weights
that were laid out for it before ("packed"). Which one wins depends on the processor and the sizes,
so it is tried out for training (`product_trials`). Sampling has our own product
(`tiled_products`).

Legend: N = rows of states, I / O = inputs and outputs of a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Way = Literal["plain", "onednn", "packed"]
FEW_ROWS = 32  # that weights are packed for


def multiply(x: Tensor, weight: Tensor, way: Way) -> Tensor:
    """Multiply x [N, I] by a weight [O, I] -> x @ weight.T, [N, O]; either may be transposed."""
    if way == "onednn":
        return onednn(x.contiguous(), weight.contiguous())
    return x @ weight.t()


def onednn(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply x [N, I] by a weight [O, I], packed or not -> [N, O] in their dtype."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out


def pack_weight(weight: Tensor) -> Tensor:
    """Lay out the weight [O, I] for oneDNN: a copy, which only `onednn` can read."""
    out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, FEW_ROWS)
    return out


def has_onednn(dtype: torch.dtype) -> bool:
    """Return whether oneDNN is built in and multiplies numbers of this type on this processor.

    It multiplies bfloat16 only with AVX-512 or with AVX-NE-CONVERT.
    """
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def candidates(weight: Tensor) -> dict[Way, Callable[[Tensor], Tensor]]:
    """Return each way of multiplying states with this weight [O, I] that PyTorch has here."""
    ways: dict[Way, Callable[[Tensor], Tensor]] = {"plain": lambda x: x @ weight.t()}
    if has_onednn(weight.dtype):
        laid_out = pack_weight(weight)
        ways["onednn"] = lambda x: onednn(x, weight)
        ways["packed"] = lambda x: onednn(x, laid_out)
    return ways
