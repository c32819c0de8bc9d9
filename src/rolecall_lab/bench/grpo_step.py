"""Benchmarks a whole step of GRPO for one agent: sampling, rewards, one optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from rolecall_lab.bench import Benchmark
from rolecall_lab.bench.workload import SEED, VOCABULARY, random_ids


@dataclass(frozen=True, slots=True)
class StepSize:
    """Holds what one step samples and trains on."""

    model: str  # a size in small_models.py
    tasks: int
    samples: int  # of each task
    prompt: int  # tokens
    completion: int  # tokens, of each sample
    rank: int = 0  # of an adapter on all linear layers; 0: all weights are trained
    dtype: str = "float32"  # of the weights that are sampled and trained


SMOKE = StepSize("xs", tasks=2, samples=2, prompt=12, completion=8)
TASKS = 512  # that exist; a step draws some
STEPS = 1_000_000  # a run that never ends
LEARNING_RATE = 1e-6


def prompts(length: int) -> list[str]:
    """Return the tasks as text: one number is one token."""
    rows = random_ids(np.random.default_rng(SEED), TASKS, length)
    return [" ".join(map(str, row)) for row in rows.tolist()]


def reward(ids: Sequence[int]) -> float:
    """Any number that differs between samples: the mean token, as a share of the largest."""
    return fmean(ids) / VOCABULARY


def _benchmark(name: str, work: str, *, full: StepSize) -> Benchmark:
    return Benchmark(
        name=name,
        unit="steps/s",
        work=work,
        full=full,
        smoke=replace(SMOKE, rank=full.rank, dtype=full.dtype),
        ours="rolecall_lab.bench.rolecall_step:set_up",
        peers={"trl": "rolecall_lab.bench.trl_step:set_up"},
    )


LARGE = (
    "One GRPO step of one agent with an adapter of rank 16 on all linear layers of 0.6 billion "
    "frozen weights, shaped as Qwen3-0.6B: 2 prompts of 80 tokens x 4 samples of exactly 64 tokens."
)
BENCHMARKS = [
    _benchmark(
        "grpo-step",
        "One GRPO step of one agent: 8 prompts of 200 tokens x 8 samples of exactly 128 tokens, "
        "0.8 million weights: sampling, rewards, credit, one optimizer step.",
        full=StepSize("s", tasks=8, samples=8, prompt=200, completion=128),
    ),
    _benchmark(
        "grpo-step-long",
        "The same with prompts of 1,000 tokens x 16 samples.",
        full=StepSize("s", tasks=8, samples=16, prompt=1000, completion=128),
    ),
    _benchmark(
        "grpo-step-l",
        LARGE,
        full=StepSize("l", tasks=2, samples=4, prompt=80, completion=64, rank=16),
    ),
    _benchmark(
        "grpo-step-l-bf16",
        "The same with the base in bfloat16.",
        full=StepSize("l", tasks=2, samples=4, prompt=80, completion=64, rank=16, dtype="bfloat16"),
    ),
]
