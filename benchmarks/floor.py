"""Measures what our side of a benchmark cannot be faster than on this machine.

    python benchmarks/floor.py [--keep] [NAME ...]

Counts what each forward pass computes and reads, and measures the machine: the fastest product of
matrices as large as the model's, and reading of memory that no second cache holds. A pass takes at
least the longer of two times: its products and attention at the first speed, or its weights, and
each page of keys and values once, at the second. A training step counts as three forward passes,
with an adapter as two, because frozen weights have no gradient; what it reads and writes beside
that is not counted. `--keep` writes the numbers into benchmarks/results/floors, from which
`docs/generate_benchmarks.py` makes a table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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
from rolecall_lab.bench.machine import header
from rolecall_lab.bench.results import results_file
from rolecall_lab.bench.small_models import SIZES, vocabulary

NAMES = (
    "team-rollout-s", "team-rollout-m", "team-rollout-l", "team-rollout-l-bf16", "real-rollout",
    "grpo-step", "grpo-step-long", "grpo-step-l", "team-step", "update",
)  # fmt: skip
FLOORS = Path(__file__).parent / "results/floors"
RUNS = 3  # of which the fastest counts


@dataclass(frozen=True, slots=True)
class Floor:
    """What a benchmark's run takes at least, and what it took."""

    name: str
    passes: int
    gflop: float
    gb: float
    gflop_per_s: float
    gb_per_s: float
    sampling_floor_s: float
    sampling_s: float  # in the forward passes of sampling
    floor_s: float
    seconds: float

    @property
    def share(self) -> float:
        return self.floor_s / self.seconds


@dataclass
class Work:
    """Floating-point operations and bytes of each forward pass."""

    model: str  # a size in small_models.py
    dtype: torch.dtype
    passes: list[tuple[float, float]] = field(default_factory=list)
    sampling_s: float = 0.0

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
    """Return the seconds of the fastest run, and its work."""
    size: Any = BENCHMARKS[name].full
    times = 2 if getattr(size, "rank", 0) else 3
    runs: list[tuple[float, Work]] = []

    def logits(self, tokens, layout, *, keep, plain=Llama.logits, **options):
        _, work = runs[-1]
        work.add(layout.position, heads=len(keep), times=1, stored=stored(layout))
        started = time.perf_counter()
        answer = plain(self, tokens, layout, keep=keep, **options)
        work.sampling_s += time.perf_counter() - started
        return answer

    def row(self, batch, *, device, plain=LogProbs.row):
        _, work = runs[-1]
        packed = plain(self, batch, device=device)
        work.add(packed.positions, heads=len(packed.chosen), times=times)
        return packed

    with tempfile.TemporaryDirectory() as folder:
        measure = set_up(name, "ours", size="full", folder=Path(folder))
        for run in range(2):
            measure(run)
        with patch.object(Llama, "logits", logits), patch.object(LogProbs, "row", row):
            for run in range(RUNS):
                work = Work(size.model, getattr(torch, getattr(size, "dtype", "float32")))
                runs.append((0.0, work))
                started = time.perf_counter()
                measure(2 + run)
                runs[-1] = time.perf_counter() - started, work
    return min(runs, key=lambda timed: timed[0])


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


def measure_floor(name: str, bandwidth: float) -> Floor:
    """Measure one benchmark; `bandwidth` in bytes a second."""
    seconds, work = counted(name)
    size = SIZES[work.model]
    shape = (size["intermediate_size"], size["hidden_size"], 2048)
    rate = max(speeds(*shape, dtype=work.dtype).values())
    floors = [(max(flops / rate, read / bandwidth), read > 0) for flops, read in work.passes]
    flops, read = map(sum, zip(*work.passes, strict=True))
    return Floor(
        name=name,
        passes=len(work.passes),
        gflop=flops / 1e9,
        gb=read / 1e9,
        gflop_per_s=rate / 1e9,
        gb_per_s=bandwidth / 1e9,
        sampling_floor_s=sum(least for least, is_sampling in floors if is_sampling),
        sampling_s=work.sampling_s,
        floor_s=sum(least for least, _ in floors),
        seconds=seconds,
    )


def keep(floors: list[Floor]) -> None:
    """Put the numbers into the file of this processor; newer ones replace older ones."""
    file = results_file(FLOORS)
    old = json.loads(file.read_text())["floors"] if file.is_file() else []
    machine = header()
    new = [asdict(one) | {"commit": machine["commit"]} for one in floors]
    numbers = {one["name"]: one for one in [*old, *new]}
    FLOORS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"header": machine, "floors": list(numbers.values())}, indent=2)
    file.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/floors")
    arguments = parser.parse_args()
    keep_freed_memory()
    table = Table(
        "benchmark", "passes", "GFLOP", "GB", "GFLOP/s", "GB/s", "sampling floor s", "s",
        "floor s", "s", "share",
    )  # fmt: skip
    block = torch.randn(100_000_000)  # 400 MB
    bandwidth = block.nbytes / best(block.sum)
    for name in arguments.names:
        one = measure_floor(name, bandwidth)
        table.add_row(
            name, str(one.passes), f"{one.gflop:.0f}", f"{one.gb:.0f}", f"{one.gflop_per_s:.0f}",
            f"{one.gb_per_s:.0f}", f"{one.sampling_floor_s:.2f}", f"{one.sampling_s:.2f}",
            f"{one.floor_s:.2f}", f"{one.seconds:.2f}", f"{one.share:.0%}",
        )  # fmt: skip
        if arguments.keep:
            keep([one])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
