"""What our side of a benchmark cannot be faster than here: `python benchmarks/floor.py [NAME ...]`.

Counts the ids that are computed and the positions that each of them sees, and measures the machine:
products of matrices as large as the model's, and reading of memory that no second cache holds. The
floor is the longer of two times: all products and attention at the first speed, or keys, values
and weights read at the second. A training step counts as three forward passes; what it reads and
writes beside that is not counted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from rolecall.bench.all import BENCHMARKS
from rolecall.bench.child import set_up
from rolecall.bench.small_models import SIZES
from rolecall.bench.workload import VOCABULARY
from rolecall.engines import scheduler
from rolecall.learners import local
from rolecall.models.attention.kv_cache import Paged
from rolecall.runtime.memory import keep_freed_memory

NAMES = ("team-rollout-s", "team-rollout-m", "grpo-step", "grpo-step-long", "update")


class Work:
    """Arithmetic (pairs of a product and a sum) and bytes of forward passes."""

    def __init__(self, size: dict[str, int]) -> None:
        hidden, inner = size["hidden_size"], size["intermediate_size"]
        self.layers, self.head = size["num_hidden_layers"], size["head_dim"]
        self.heads, self.kv_heads = size["num_attention_heads"], size["num_key_value_heads"]
        mixer = 2 * hidden * self.head * (self.heads + self.kv_heads)
        self.weights = self.layers * (mixer + 3 * hidden * inner) + hidden * size.get(
            "vocab_size", VOCABULARY
        )
        self.sums = self.bytes = 0

    def add(self, positions: torch.Tensor, *, times: int) -> None:
        """One pass over ids at these positions."""
        seen = int((positions + 1).sum())
        attention = 2 * self.layers * self.heads * self.head * seen
        self.sums += times * (self.weights * len(positions) + attention)
        if times == 1:
            self.bytes += 4 * (2 * self.layers * self.kv_heads * self.head * seen + self.weights)


def floor(name: str) -> tuple[float, Work]:
    """Seconds that a run takes, and its work."""
    benchmark = BENCHMARKS[name]
    work = Work(SIZES[benchmark.full.model])

    def paged(*args: torch.Tensor | None, **options: object) -> Paged:
        layout = Paged(*args, **options)
        work.add(layout.position, times=1)
        return layout

    def layout_of(parent, depth, *, device, plain=local.layout_of):
        work.add(torch.from_numpy(depth).long(), times=3)
        return plain(parent, depth, device=device)

    with tempfile.TemporaryDirectory() as folder:
        measure = set_up(name, "ours", size="full", folder=Path(folder))
        for run in range(3):
            measure(run)
        with patch.object(scheduler, "Paged", paged), patch.object(local, "layout_of", layout_of):
            started = time.perf_counter()
            measure(3)
            return time.perf_counter() - started, work


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
    table = Table("benchmark", "G sums", "GB", "floor s", "bound by", "ours s", "share reached")
    block = torch.randn(8_000_000)  # 32 MB
    speed = block.nbytes / best(block.sum)
    for name in sys.argv[1:] or NAMES:
        size = SIZES[BENCHMARKS[name].full.model]
        hidden, inner = size["hidden_size"], size["intermediate_size"]
        left, right = torch.randn(2048, hidden), torch.randn(hidden, inner)
        rate = 2048 * hidden * inner / best(lambda left=left, right=right: left @ right)
        seconds, work = floor(name)
        bounds = {"arithmetic": work.sums / rate, "memory": work.bytes / speed}
        bound = max(bounds, key=lambda kind: bounds[kind])
        table.add_row(
            name, f"{work.sums / 1e9:.1f}", f"{work.bytes / 1e9:.1f}", f"{bounds[bound]:.2f}",
            f"{bound} ({rate / 1e9:.0f} G sums/s)" if bound == "arithmetic"
            else f"{bound} ({speed / 1e9:.0f} GB/s)",
            f"{seconds:.2f}", f"{bounds[bound] / seconds:.0%}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
