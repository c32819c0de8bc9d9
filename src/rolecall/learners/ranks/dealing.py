"""Deals micro-batches to ranks. A prefix tree stays on one rank, as batches are dealt whole."""

from __future__ import annotations

import numpy as np

from rolecall.core.types import Batch, Ids, Turn
from rolecall.learners.packing import join

Dealt = list[list[Batch]]  # by rank
IDLE = "idle"


def deal(batches: list[Batch], ranks: int, *, evenly: bool) -> Dealt:
    """Return each rank's batches. Tokens 9, 5, 4, 3 on two ranks: [9, 3] and [5, 4].

    `evenly`: every rank must run as many forward passes as the others, so those of one round are
    of similar sizes, and rows that train nothing stand where batches are missing.
    """
    largest_first = sorted(batches, key=lambda batch: -len(batch.tokens))
    dealt: Dealt = [[] for _ in range(ranks)]
    load = [0] * ranks
    for number, batch in enumerate(largest_first):
        # In a round the rank with the least so far goes first; without rounds it is always next.
        open_ranks = [r for r in range(ranks) if not evenly or len(dealt[r]) == number // ranks]
        rank = min(open_ranks, key=lambda r: (load[r], r))
        dealt[rank].append(batch)
        load[rank] += len(batch.tokens)
    if evenly:
        most = max(map(len, dealt))
        dealt = [mine + [idle_row()] * (most - len(mine)) for mine in dealt]
    return dealt


def make_row(tokens: Ids, *, name: str) -> Batch:
    """Return the batch in which every token after the first one was sampled at temperature 1."""
    turn = Turn(
        id=name, task="", episode="", agent="", policy="", path=(),
        prompt=tokens[:1], tokens=tokens[1:],
    )  # fmt: skip
    return join([[turn]])


def idle_row() -> Batch:
    """Return what a rank computes only because others compute."""
    return make_row(np.zeros(2, dtype=np.int32), name=IDLE)


def is_idle(batch: Batch) -> bool:
    return batch.turn_ids == [IDLE]
