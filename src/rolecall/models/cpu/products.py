"""Multiplies states with a weight in the way that is fastest on this processor.

PyTorch's own product of float32 matrices is MKL's. oneDNN has another one, which also takes weights
that were laid out for it before ("packed"). Which one wins depends on the processor, the sizes and
the number of rows, so it is tried out (`product_trials`).

Legend: N = rows of states, I / O = inputs and outputs of a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Way = Literal["plain", "onednn", "packed"]
LowRank = tuple[Tensor, Tensor, float]  # down [R, I], up [O, R], scaling: up @ down times it
ROWS = (8, 32, 128, 512)  # numbers of rows that are tried; one in between takes the next one's way


class Product:
    """x @ weight.T + bias for states x, float32 in and out; the weight may be bfloat16."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        ways: tuple[Way, ...],
        exact: bool = False,
        low_rank: LowRank | None = None,
    ) -> None:
        """weight [O, I], used where it lies; ways: one for each of `ROWS`.

        `exact`: compute in float32, also with a bfloat16 weight, of which a copy is made.
        `low_rank`: what is added to a float32 weight. The sum is a copy, laid out if any way is.
        """
        if low_rank is not None and "packed" in ways:
            packed_only: Way = "packed"  # or there would be two copies
            ways = (packed_only,) * len(ways)
        self.source, self.low_rank = weight.detach(), low_rank
        self.bias = None if bias is None else bias.detach()
        self.ways = ways
        self.num_outputs = weight.shape[0]
        self.in_float32 = exact or weight.dtype == torch.float32
        self.weight = self.source
        self._copy()

    def follow(self, *, published: bool = False) -> None:
        """Copy the weight again if it has changed: PyTorch does not count fused AdamW's steps."""
        if published or self._versions != self._versions_now():
            self._copy()

    def _copy(self) -> None:
        """Make what is not the weight itself."""
        weight = self.source.float() if self.in_float32 else self.source
        if self.low_rank is not None:
            down, up, scaling = self.low_rank
            weight = torch.addmm(weight, up.detach(), down.detach(), alpha=scaling)
        if "packed" in self.ways:
            self._packed = packed(weight)
        if self.low_rank is None or "packed" not in self.ways:
            self.weight = weight
        self._versions = self._versions_now()

    def _versions_now(self) -> tuple[int, ...]:
        added = () if self.low_rank is None else self.low_rank[:2]
        return tuple(tensor._version for tensor in (self.source, *added))

    def times(self, x: Tensor) -> Tensor:
        """x [N, I] -> [N, O]"""
        out = self._oned(x)
        if out is None:
            out = self._cast(x) @ self.weight.t()
        out = out.float()
        return out if self.bias is None else out.add_(self.bias)

    def plus(self, x: Tensor, to: Tensor) -> Tensor:
        """The same added to `to` [N, O], which is overwritten."""
        out = self._oned(x)
        if out is not None:
            to.add_(out)
        elif self.in_float32:
            to.addmm_(x, self.weight.t())
        else:
            to.add_(self._cast(x) @ self.weight.t())
        return to if self.bias is None else to.add_(self.bias)

    def _oned(self, x: Tensor) -> Tensor | None:
        """oneDNN's product, where it is the way for so many rows."""
        way = way_for(self.ways, len(x))
        if way == "plain":
            return None
        return onednn(self._cast(x), self._packed if way == "packed" else self.weight)

    def _cast(self, x: Tensor) -> Tensor:
        return x if self.in_float32 else x.to(self.source.dtype)


def way_for(ways: tuple[Way, ...], rows: int) -> Way:
    """The one that was fastest for so many rows, or for the next number of them that was tried."""
    for tried, way in zip(ROWS, ways, strict=True):
        if rows <= tried:
            return way
    return ways[-1]


def multiplied(x: Tensor, weight: Tensor, way: Way) -> Tensor:
    """x [N, I] and a weight [O, I], either of them transposed or not -> x @ weight.T, [N, O]."""
    if way == "onednn":
        return onednn(x.contiguous(), weight.contiguous())
    return x @ weight.t()


def onednn(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, I] and a weight [O, I], packed or not -> [N, O] in their dtype."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out


def packed(weight: Tensor) -> Tensor:
    """The weight [O, I] laid out for oneDNN: a copy, which only `onednn` can read."""
    out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS[1])
    return out


def has_onednn() -> bool:
    """Whether this PyTorch was built with it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def candidates(weight: Tensor) -> dict[Way, Callable[[Tensor], Tensor]]:
    """Each way of multiplying states with this weight [O, I]; what PyTorch lacks is left out."""
    found: dict[Way, Callable[[Tensor], Tensor]] = {"plain": lambda x: x @ weight.t()}
    if has_onednn():
        laid_out = packed(weight)
        found["onednn"] = lambda x: onednn(x, weight)
        found["packed"] = lambda x: onednn(x, laid_out)
    return found
