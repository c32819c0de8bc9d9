"""What our side of a benchmark cannot be faster than here: `python benchmarks/floor.py [NAME ...]`.

Counts what each forward pass computes and reads, and measures the machine: the fastest product of
matrices as large as the model's, and reading of memory that no second cache holds. A pass takes at
least the longer of two times: its products and attention at the first speed, or its weights, and
each page of keys and values once, at the second. A training step counts as three forward passes,
with an adapter as two, because frozen weights have no gradient; what it reads and writes beside
that is not counted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from rolecall.engines.local.llama_pass import Llama
from rolecall.learners.forward import LogProbs
from rolecall.models.attention.kv_cache import Paged
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.cpu.product_trials import speeds
from rolecall.runtime.memory import keep_freed_memory
from rolecall_lab.bench.all import BENCHMARKS
from rolecall_lab.bench.child import set_up
from rolecall_lab.bench.small_models import SIZES, vocabulary

NAMES = ("team-rollout-s", "team-rollout-m", "grpo-step", "grpo-step-long", "update")


@dataclass
class Work:
    """Floating-point operations and bytes of each forward pass."""

    model: str  # a size in small_models.py
    dtype: torch.dtype
    passes: list[tuple[float, float]] = field(default_factory=list)

    def add(self, positions: torch.Tensor, *, heads: int, times: int, stored: int = 0) -> None:
        """One pass over tokens at these positions, of which so many need logits.

        stored: positions whose keys and values are read.
        """
        size = SIZES[self.model]
        hidden, layers = size["hidden_size"], size["num_hidden_layers"]
        kv = size["num_key_value_heads"] * size["head_dim"]
        mixer = 2 * hidden * (size["num_attention_heads"] * size["head_dim"] + kv)
        inner = layers * (mixer + 3 * hidden * size["intermediate_size"])
        head = hidden * vocabulary(self.model)
        seen = int((positions + 1).sum())
        attention = 2 * layers * size["num_attention_heads"] * size["head_dim"] * seen
        sums = inner * len(positions) + head * heads + attention
        read = self.dtype.itemsize * (inner + head) + 4 * 2 * layers * kv * stored
        self.passes.append((2.0 * times * sums, read if times == 1 else 0.0))


def counted(name: str) -> tuple[float, Work]:
    """Seconds that a run takes, and its work."""
    size: Any = BENCHMARKS[name].full
    work = Work(size.model, getattr(torch, getattr(size, "dtype", "float32")))
    times = 2 if getattr(size, "rank", 0) else 3

    def logits(self, tokens, layout, *, keep, plain=Llama.logits, **options):
        work.add(layout.position, heads=len(keep), times=1, stored=stored(layout))
        return plain(self, tokens, layout, keep=keep, **options)

    def row(self, batch, *, device, plain=LogProbs.row):
        found = plain(self, batch, device=device)
        work.add(found.positions, heads=len(found.chosen), times=times)
        return found

    with tempfile.TemporaryDirectory() as folder:
        measure = set_up(name, "ours", size="full", folder=Path(folder))
        for run in range(2):
            measure(run)
        with patch.object(Llama, "logits", logits), patch.object(LogProbs, "row", row):
            started = time.perf_counter()
            measure(2)
            return time.perf_counter() - started, work


def stored(layout: Paged) -> int:
    """Positions in all pages that these rows read, each page once."""
    pages = (layout.starts + layout.counts + PAGE - 1) // PAGE
    read = layout.table[torch.arange(layout.table.shape[1]) < pages[:, None]]
    return PAGE * len(read.unique())


def best(work: Callable[[], object], *, number: int = 30) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(number):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    keep_freed_memory()
    table = Table("benchmark", "passes", "GFLOP", "GB", "GFLOP/s", "GB/s", "floor s", "s", "share")
    block = torch.randn(100_000_000)  # 400 MB
    bandwidth = block.nbytes / best(block.sum)
    for name in sys.argv[1:] or NAMES:
        seconds, work = counted(name)
        size = SIZES[work.model]
        shape = (size["intermediate_size"], size["hidden_size"], 2048)
        rate = max(speeds(*shape, dtype=work.dtype).values())
        floor = sum(max(flops / rate, read / bandwidth) for flops, read in work.passes)
        flops, read = map(sum, zip(*work.passes, strict=True))
        table.add_row(
            name, str(len(work.passes)), f"{flops / 1e9:.0f}", f"{read / 1e9:.0f}",
            f"{rate / 1e9:.0f}", f"{bandwidth / 1e9:.0f}", f"{floor:.2f}", f"{seconds:.2f}",
            f"{floor / seconds:.0%}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
