"""Records decoding steps as CUDA graphs, so that each is one call instead of a thousand.

A CUDA graph has fixed shapes and addresses. So rows are padded to few sizes with rows that read and
write the spare page, and what differs from step to step is copied to where the graph reads it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rolecall.core.errors import first_line
from rolecall.models.attention.flex import pad_size
from rolecall.models.attention.flex_pages import FlexPages
from rolecall.models.attention.kv_cache import Cache
from rolecall.models.foreign_attention import close
from rolecall.models.language_model import LanguageModel, has_dynamic_rope, mixture_over

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


notices = logging.getLogger("rolecall.notices")

LEAST_ROWS = 8
WARM_UPS = 2  # runs before recording: compiling must not be recorded


class Recorded:
    """Steps of one base over one cache; weights are read where they are, so they may change.

    A step of policies that train adapters computes with all of them, for rows of any of them.
    """

    def __init__(self, models: list[LanguageModel], cache: Cache, *, width: int) -> None:
        """`models`: the policies of the base; `width`: pages of the longest row."""
        self.models, self.cache, self.width = models, cache, width
        self.unfit = ""  # why steps are not recorded after all
        self._steps: dict[int, _Step] = {}
        self._pool: _POOL_HANDLE | None = None  # the steps share what they compute in

    def logits(self, tokens: Tensor, starts: Tensor, table: Tensor, *, policy: Tensor) -> Tensor:
        """Compute logits [B, V] of tokens and starts [B], table [B, P]; valid until the next call.

        policy [B]: which of the models each row has.
        """
        rows, size = len(tokens), pad_size(len(tokens), least=LEAST_ROWS)
        if size not in self._steps:
            self._steps[size] = _Step(self.models, self.cache, rows=size, width=self.width)
        step, width = self._steps[size], min(self.width, table.shape[1])
        step.tokens[:rows], step.policy[:rows] = tokens, policy
        step.starts[:rows], step.starts[rows:] = starts, 0
        step.table[:rows, :width], step.table[rows:] = table[:, :width], self.cache.spare
        if step.graph is None and tokens.device.type == "cuda" and not self.unfit:
            self._record(step)
        if step.graph is None:
            return step.forward()[:rows]
        step.graph.replay()
        return step.logits[:rows]

    def _record(self, step: _Step) -> None:
        """Record a step; where that fails, or replaying says something else, no step is replayed.

        A step that runs again writes the same keys and values again.
        """
        try:
            expected = step.forward().clone()
            self._pool = step.record(self._pool)
            assert step.graph is not None
            step.graph.replay()
            apart = float((step.logits - expected).abs().max() / expected.abs().max())
        except RuntimeError as error:
            self.unfit = first_line(error)
        else:
            if not apart <= close(self.models[0].model):
                self.unfit = f"the logits of a replayed one differ by {apart:.2g} of the largest"
        if self.unfit:
            for each in self._steps.values():
                each.graph = None
            notices.warning(
                "decoding steps on %s are computed anew each time, which is slower: %s",
                self.models[0].device, self.unfit,
            )  # fmt: skip


class _Step:
    """One size: what the graph reads and writes."""

    def __init__(self, models: list[LanguageModel], cache: Cache, *, rows: int, width: int) -> None:
        self.model, self.cache = models[0], cache
        self.tokens = torch.zeros(rows, dtype=torch.long, device=self.model.device)
        self.starts, self.policy = torch.zeros_like(self.tokens), torch.zeros_like(self.tokens)
        self.table = torch.zeros(rows, width, dtype=torch.int32, device=self.model.device)
        self.all = torch.arange(rows, device=self.model.device)
        self.mixture = mixture_over(models, self.policy) if len(models) > 1 else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.zeros(0)

    def forward(self) -> Tensor:
        layout = FlexPages(self.table, self.starts, cache=self.cache)
        ids = (self.tokens, self.starts)
        if self.mixture is None:
            return self.model.logits(*ids, layout=layout, keep=self.all)
        return self.model.mixed_logits_of_rows(
            *ids, mixture=self.mixture.anew(), layout=layout, keep=self.all
        )

    def record(self, pool: _POOL_HANDLE | None) -> _POOL_HANDLE:
        """Run the step, then record it in the memory that `pool` holds."""
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
    """Return whether a step needs nothing but the device."""
    return model.device.type == "cuda" and not has_dynamic_rope(model.config)
