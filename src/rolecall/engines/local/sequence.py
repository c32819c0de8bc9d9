"""Keeps track of the completions of a request: where each stands, and what it has sampled."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from rolecall.core.interfaces.engine import Completion, ContextFullError, Request
from rolecall.core.seeding import derive_seed


@dataclass(slots=True, eq=False)
class Sequence:
    """One completion that is being sampled."""

    request: Request
    done: asyncio.Future[Completion]
    seed: int  # of all its draws
    limit: int  # most tokens it may have
    ends: frozenset[int]
    is_plain: bool  # its tokens come from the softmax, and no text ends it
    pages: list[int] = field(default_factory=list)  # of the cache, for all that it may become
    num_read: int = 0  # tokens of its prompt that the cache holds
    newest: list[int] = field(default_factory=list)  # sampled, where a text may end it


def make_sequences(request: Request, *, limits: dict[str, int], ends: list[int]) -> list[Sequence]:
    """Make a row for each completion; raises ContextFullError if the prompt reaches a limit."""
    sampling = request.sampling
    limit = min(limits, key=lambda name: limits[name])
    room = limits[limit] - len(request.prompt)
    if room < 1:
        raise ContextFullError(
            f"the prompt of {request.id} has {len(request.prompt)} tokens; {limit} of policy "
            f"{request.policy!r} has room for {limits[limit] - 1}"
        )
    seeds = [
        request.seed if request.n == 1 else derive_seed(request.seed, i) for i in range(request.n)
    ]
    return [
        Sequence(
            request=request,
            done=asyncio.get_running_loop().create_future(),
            seed=seed,
            limit=min(sampling.max_tokens, room),
            ends=frozenset((*ends, *sampling.stop_token_ids)),
            is_plain=not sampling.stop and not sampling.is_filtered,
        )
        for seed in seeds
    ]


def draw_uniforms(row: Sequence) -> np.ndarray:
    """Return the row's uniform numbers [limit], fixed before the first token is sampled."""
    return np.random.default_rng(row.seed).random(row.limit)
