"""Decoding steps in, replays of recorded ones out: one call instead of a thousand small ones.

A CUDA graph has fixed shapes and addresses. So rows are padded to few sizes with rows that read and
write the spare page, and what differs from step to step is copied to where the graph reads it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rolecall.flex import padded
from rolecall.flex_pages import FlexPages
from rolecall.kv_cache import Cache
from rolecall.models import LanguageModel, lengths_turn

LEAST_ROWS = 8
WARM_UPS = 2  # runs before recording: compiling must not be recorded


class Recorded:
    """Steps of one model over one cache; weights are read where they are, so they may change."""

    def __init__(self, model: LanguageModel, cache: Cache, *, width: int) -> None:
        """`width`: pages of the longest row."""
        self.model, self.cache, self.width = model, cache, width
        self._steps: dict[int, _Step] = {}
        self._pool: Any = None  # the steps share what they compute in

    def logits(self, tokens: Tensor, starts: Tensor, table: Tensor) -> Tensor:
        """tokens and starts [B], table [B, P] -> [B, V], which stands until the next call."""
        rows, size = len(tokens), padded(len(tokens), least=LEAST_ROWS)
        if size not in self._steps:
            self._steps[size] = _Step(self.model, self.cache, rows=size, width=self.width)
        step, width = self._steps[size], min(self.width, table.shape[1])
        step.tokens[:rows] = tokens
        step.starts[:rows], step.starts[rows:] = starts, 0
        step.table[:rows, :width], step.table[rows:] = table[:, :width], self.cache.spare
        if self.model.device.type != "cuda":
            return step.forward()[:rows]
        if step.graph is None:
            self._pool = step.record(self._pool)
        assert step.graph is not None
        step.graph.replay()
        return step.logits[:rows]


class _Step:
    """One size: what the graph reads and writes."""

    def __init__(self, model: LanguageModel, cache: Cache, *, rows: int, width: int) -> None:
        self.model, self.cache = model, cache
        self.tokens = torch.zeros(rows, dtype=torch.long, device=model.device)
        self.starts = torch.zeros_like(self.tokens)
        self.table = torch.zeros(rows, width, dtype=torch.int32, device=model.device)
        self.all = torch.arange(rows, device=model.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.zeros(0)

    def forward(self) -> Tensor:
        layout = FlexPages(self.table, self.starts, cache=self.cache)
        return self.model.logits(self.tokens, self.starts, layout=layout, keep=self.all)

    def record(self, pool: Any) -> Any:
        """Run, then record; the memory that `pool` holds is used again."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self.forward()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        # An update may run in another thread: only this one's calls are recorded.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.logits = self.forward()
        return self.graph.pool()


def recordable(model: LanguageModel) -> bool:
    """Whether a step needs nothing but the device."""
    return model.device.type == "cuda" and not lengths_turn(model.config)
