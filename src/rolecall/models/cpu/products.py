"""Multiplies states with a weight in the way that is fastest on this processor.

PyTorch's own product of float32 matrices is MKL's. oneDNN has another one, which also takes weights
that were laid out for it before ("packed"). Which one wins depends on the processor, the sizes and
the number of rows, so it is tried out (`product_trials`): for sampling in bfloat16 and for
training. Sampling in float32 has our own product (`tiled_products`).

Legend: N = rows of states, I / O = inputs and outputs of a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Way = Literal["plain", "onednn", "packed"]
ROWS = (8, 32, 128, 512)  # numbers of rows that are tried; one in between takes the next one's way


class Product:
    """x @ weight.T + bias for states x in float32, rounded to bfloat16; float32 comes out."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, ways: tuple[Way, ...]) -> None:
        """Set up the product; ways: one for each of `ROWS`.

        weight [O, I] in bfloat16 is used without a copy.
        """
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.ways, self.num_outputs = ways, weight.shape[0]
        self.sources = [self.weight]
        self.follow()

    def follow(self) -> None:
        """Copy the weight again, where a copy is used."""
        if "packed" in self.ways:
            self._packed = pack_weight(self.weight)

    def times(self, x: Tensor) -> Tensor:
        """Multiply x [N, I] by the weight -> [N, O]."""
        x, way = x.to(self.weight.dtype), way_for(self.ways, len(x))
        if way == "plain":
            out = x @ self.weight.t()
        else:
            out = onednn(x, self._packed if way == "packed" else self.weight)
        out = out.float()
        return out if self.bias is None else out.add_(self.bias)

    def plus(self, x: Tensor, to: Tensor) -> Tensor:
        """Add the product to `to` [N, O], in place."""
        return to.add_(self.times(x))


def way_for(ways: tuple[Way, ...], rows: int) -> Way:
    """Return the fastest way for that many rows, or for the next number of rows that was tried."""
    for tried, way in zip(ROWS, ways, strict=True):
        if rows <= tried:
            return way
    return ways[-1]


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
    out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS[1])
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
