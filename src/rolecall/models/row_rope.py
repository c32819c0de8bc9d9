"""Rotates the positions of each row by the factors of its own length (longrope: Phi-3, Phi-4-mini).

Such a model has short factors for rows within its original context and long ones for rows beyond.
transformers chooses by the longest row of a pass, so a short row beside a long one would be
computed by factors that it does not have alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rolecall.core.types import NO_PARENT
from rolecall.models.attention.kv_cache import Paged
from rolecall.models.attention.layouts import Layout, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_long: ContextVar[Tensor | None] = ContextVar("rolecall_long_rows", default=None)


class RowRope(nn.Module):
    """The rotary embedding of a model, asked once with short and once with long factors."""

    def __init__(self, inner: nn.Module, limit: int) -> None:
        """`limit`: the most tokens of a row that has short factors."""
        super().__init__()
        self.inner, self.limit = inner, limit

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Compute cosines and sines [1, N, D] of position_ids [1, N]."""
        long = _long.get()
        if long is None:  # a row by itself, or several of one kind
            rotations: tuple[Tensor, Tensor] = self.inner(x, position_ids)
            return rotations
        short = self.inner(x, position_ids.masked_fill(long, 0))
        if not bool(long.any()):
            return short
        # One position more, beyond the limit, makes transformers take the long factors.
        beyond = torch.full_like(position_ids[:, :1], self.limit)
        stretched = self.inner(x, torch.cat([position_ids, beyond], dim=1))
        which = long[None, :, None]
        cos, sin = (torch.where(which, b[:, :-1], a) for a, b in zip(short, stretched, strict=True))
        return cos, sin


def install(model: PreTrainedModel) -> int | None:
    """Let a model's rotary embeddings ask for each row's length; the limit, or None.

    Raises ValueError where only some of its layers have such factors.
    """
    embeddings = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if getattr(child, "rope_type", None) == "longrope"
    ]
    kinds = [kind for m in model.modules() if isinstance(kind := getattr(m, "rope_type", ""), dict)]
    if any("longrope" in kind.values() for kind in kinds):
        raise ValueError("factors of positions that differ by kinds of layers")
    limits = set()
    for parent, name, child in embeddings:
        limit = int(child.config.rope_parameters["original_max_position_embeddings"])
        setattr(parent, name, RowRope(child, limit))
        limits.add(limit)
    return max(limits, default=None)


@contextmanager
def long_tokens(long: Tensor | None) -> Iterator[None]:
    """Forward passes inside take `long` [N] to say which tokens stand in rows beyond the limit."""
    token = _long.set(long)
    try:
        yield
    finally:
        _long.reset(token)


@contextmanager
def rows_told_apart(limit: int | None, layout: Layout) -> Iterator[None]:
    """Let a forward pass take the lengths of the layout's rows, unless its caller knows better."""
    if limit is None or _long.get() is not None:
        yield
        return
    with long_tokens(_beyond(layout, limit)):
        yield


def _beyond(layout: Layout, limit: int) -> Tensor | None:
    """Return which tokens stand in rows of more than `limit` tokens; None if unknown."""
    if isinstance(layout, Rows):
        lengths = torch.tensor(layout.lengths, device=layout.row.device)
        return (lengths > limit)[layout.row]
    if isinstance(layout, Paged):
        return (layout.starts + layout.counts > limit)[layout.row]
    parent = getattr(layout, "parent", None)
    if parent is None:
        return None
    depth = np.zeros(len(parent), dtype=np.int64)
    for token, before in enumerate(parent):
        depth[token] = 0 if before == NO_PARENT else depth[before] + 1
    reach = depth + 1  # tokens of the longest row through each token
    for token in range(len(parent) - 1, -1, -1):
        before = parent[token]
        if before != NO_PARENT:
            reach[before] = max(reach[before], reach[token])
    device = getattr(layout, "device", torch.device("cpu"))
    return torch.from_numpy(reach > limit).to(device)
