"""Computes flat rows of tokens row by row, for models whose layers would let rows reach each other.

Recurrent layers and convolutions carry a state from token to token of whatever row they are given.
So each row is a forward pass of its own, with the model's own attention, and nothing is padded.

Legend: N = tokens of the flat row, M = kept indices, V = vocabulary, W = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rolecall.models.attention.prefix_tree import paths

# Of one row's tokens [1, T] and the indices of it to keep: what is computed there.
Read = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def read_rows(read: Read, tokens: Tensor, *, layout: Any, keep: Tensor) -> list[Tensor]:
    """Return what `read` gives after the kept indices, in their order: [M, ...] each.

    A tree has a row for each of its branches, from the root on: what they share is computed for
    each, and read from the first. Rows of which nothing is kept are not computed.
    """
    rows = [torch.from_numpy(path).to(tokens.device) for path in paths(layout.parent)]
    row_of, position = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for number in reversed(range(len(rows))):  # the first row that holds a token comes last
        row_of[rows[number]] = number
        position[rows[number]] = torch.arange(len(rows[number]), device=tokens.device)
    outputs, where = [], []
    for number, row in enumerate(rows):
        chosen = (row_of[keep] == number).nonzero()[:, 0]
        if len(chosen):
            outputs.append(read(tokens[row][None], position[keep[chosen]]))
            where.append(chosen)
    order = torch.cat(where).argsort()
    return [torch.cat(parts).index_select(0, order) for parts in zip(*outputs, strict=True)]
