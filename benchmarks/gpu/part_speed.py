"""Measures the embedded engine and the learner on a random model of the shape of Qwen3-0.6B."""

from __future__ import annotations

import asyncio
import gc
import time
from functools import partial

import torch

from benchmarks.gpu.checks import Figures, Machine, add_checks, check
from benchmarks.gpu.models import (
    count_parameters,
    large_model,
    load,
    load_adapters,
    make_engine,
    make_turns,
    sample,
)  # fmt: skip
from benchmarks.gpu.part_engine import PROMPT
from rolecall.algorithms.grpo import Grpo
from rolecall.config.optimizer import Optimizer
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall_lab.bench.engine_rollout import measure_talks
from rolecall_lab.bench.grpo_step import StepSize
from rolecall_lab.bench.rolecall_step import make_config, measure_steps
from rolecall_lab.bench.small_models import vocabulary
from rolecall_lab.bench.workload import TeamSize

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16
ROWS = (1, 32, 256)
LEARNERS: dict[str, dict[str, object]] = {
    "whole": {}, "recomputed": {"checkpoint_activations": True}, "adapter": {"rank": 16},
}  # fmt: skip


def sampled_tokens_per_second(machine: Machine, *, rows: int) -> Figures:
    """Rows of 256 tokens each, in bfloat16, all at once."""
    base, _ = large_model(machine)
    model = load(machine, base, dtype=torch.bfloat16)
    engine = make_engine({"p": model}, cache_gb=0.01 if machine.is_dry else 16.0)
    rows, tokens = (min(rows, 4), 8) if machine.is_dry else (rows, 256)
    asyncio.run(sample(engine, "p", PROMPT, tokens=16, number=rows))  # records the steps
    machine.synchronize()
    started = time.perf_counter()
    completions = asyncio.run(sample(engine, "p", PROMPT, tokens=tokens, number=rows, seed=1))
    seconds = time.perf_counter() - started
    count = sum(len(one.tokens) for one in completions)
    return {"tokens/s": count / seconds, "ms a step": 1000 * seconds / tokens}


add_checks(
    "speed",
    {f"sampling_{rows}_rows": partial(sampled_tokens_per_second, rows=rows) for rows in ROWS},
)


@check
def where_a_step_goes(machine: Machine) -> Figures:
    """Milliseconds of the GPU and of the host in a decoding step of 32 rows, and its kernels."""
    machine.require_gpu("the stand-in has no kernels")
    base, _ = large_model(machine)
    model = load(machine, base, dtype=torch.bfloat16)
    engine = make_engine({"p": model}, cache_gb=16.0)
    asyncio.run(sample(engine, "p", PROMPT, tokens=16, number=32))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    tokens = 64
    with torch.profiler.profile(activities=activities) as profile:
        asyncio.run(sample(engine, "p", PROMPT, tokens=tokens, number=32, seed=1))
    kernels = [one for one in profile.key_averages() if one.device_type.name == "CUDA"]
    kernels.sort(key=lambda one: one.self_device_time_total, reverse=True)
    total = sum(one.self_device_time_total for one in kernels)
    figures = {"GPU ms a step": total / 1000 / tokens}
    for one in kernels[:8]:
        figures[one.key[:60]] = one.self_device_time_total / 1000 / tokens
    return figures


@check
def team_rollout(machine: Machine) -> Figures:
    """The talks of `team-rollout-l` with 128 episodes: solver, verifier, solver again."""
    base, size = large_model(machine)
    model = load(machine, base, dtype=torch.bfloat16)
    tasks, samples = (2, 2) if machine.is_dry else (16, 8)
    team = TeamSize(size, tasks=tasks, samples=samples, dtype="bfloat16")
    measure = measure_talks(model, team, cache_gb=0.05 if machine.is_dry else 16.0)
    measure(0)
    return {"tokens/s": max(measure(number).value for number in (1, 2))}


def update_speed(machine: Machine, *, options: dict[str, object]) -> Figures:
    """One optimizer step on 64 turns of 512 tokens, eight of which share a prompt of 512."""
    base, size = large_model(machine)
    options = dict(options)
    rank = int(str(options.pop("rank", 0)))
    if rank:
        model = load_adapters(machine, base, ["p"], dtype=torch.bfloat16, rank=rank)["p"]
    else:
        model = load(machine, base, dtype=torch.bfloat16)
    learner = LocalLearner(model, Optimizer(lr=1e-6), total_updates=100, **options)
    number, length, budget = (8, 16, 200) if machine.is_dry else (64, 512, 16384)
    turns = make_turns(number, prompt=length, tokens=length, vocabulary=vocabulary(size), shared=8)
    batches = pack(turns, budget=budget, by_agent=False)
    packed = sum(len(batch.tokens) for batch in batches)
    seconds = []
    gc.collect()
    for _ in range(2 if machine.is_dry else 4):
        machine.synchronize()
        started = time.perf_counter()
        asyncio.run(learner.update([batches], Grpo(), per_agent=False))
        machine.synchronize()
        seconds.append(time.perf_counter() - started)
    best = min(seconds)
    figures = {
        "updates/s": 1 / best, "packed tokens/s": packed / best,
        "turn tokens/s": 2 * number * length / best,
    }  # fmt: skip
    if not machine.is_dry:
        name = torch.cuda.get_device_name(0)
        peak = next((flops for kind, flops in PEAK_FLOPS.items() if kind in name), None)
        passes = 4 if rank else 6  # operations of each weight and token; frozen ones need no slope
        if peak is not None:
            figures["MFU"] = passes * count_parameters(size) * packed / best / peak
        figures["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return figures


add_checks(
    "speed",
    {
        f"update_{name}": partial(update_speed, options=options)
        for name, options in LEARNERS.items()
    },
)


@check
def grpo_step(machine: Machine) -> Figures:
    """A whole step of GRPO: 32 prompts of 256 tokens, 8 answers of 256 each, and the update."""
    base, size = large_model(machine)
    step = StepSize(size, tasks=32, samples=8, prompt=256, completion=256, dtype="bfloat16")
    if machine.is_dry:
        step = StepSize(size, tasks=2, samples=2, prompt=12, completion=8)
    learner = {"device": "cuda", "tokens_per_batch": 16384}
    cache_gb = 0.05 if machine.is_dry else 16.0
    measure = measure_steps(make_config(step, base, learner=learner, cache_gb=cache_gb))
    measure(0)
    seconds = 1 / max(measure(number).value for number in (1, 2))
    tokens = step.tasks * step.samples * step.completion
    return {"seconds": seconds, "trained tokens/s": tokens / seconds}
