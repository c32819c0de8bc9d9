"""Measures how fast OpenVINO GenAI samples a team's talks, by its continuous batching.

A finished turn's successor joins the running batch at the next step. The first talk of each task
begins alone, because prompts are looked up in the prefix cache when they are added: the others
then find what it has read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from openvino import Tensor
from openvino_genai import (
    ContinuousBatchingPipeline,
    GenerationConfig,
    GenerationStatus,
    SchedulerConfig,
)
from openvino_genai.py_openvino_genai import GenerationHandle

from rolecall.core.types import Ids
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.openvino_models import write_openvino
from rolecall_lab.bench.small_models import random_model, vocabulary
from rolecall_lab.bench.workload import Talk, TeamSize, talks

BATCH = 2048  # tokens of one step
CACHE_GB = 2  # as much as our engine's cache_gb
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


def load(model: Path, dtype: str) -> ContinuousBatchingPipeline:
    """Read and compile a model that computes and caches in the number format of its weights."""
    scheduler = SchedulerConfig()
    scheduler.max_num_batched_tokens = BATCH
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = True
    threads = int(os.environ["OMP_NUM_THREADS"])
    properties = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "KV_CACHE_PRECISION": PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": threads,
        "sampler_num_threads": threads,
    }
    return ContinuousBatchingPipeline(model, scheduler, "CPU", properties)


def set_up(size: TeamSize, folder: Path) -> Measure:
    model = write_openvino(random_model(folder, size.model), size.dtype)
    pipeline: ContinuousBatchingPipeline | None = load(model, size.dtype)

    def measure(run: int) -> Measured:
        nonlocal pipeline
        played = talks(size, run)
        started = time.perf_counter()
        if size.trains:
            pipeline = None  # frees the old weights first
            pipeline = load(model, size.dtype)
        count = play_all(pipeline, played, size=size, run=run)
        return Measured(count / (time.perf_counter() - started), {"sampled tokens": count})

    return measure


def play_all(
    pipeline: ContinuousBatchingPipeline, played: list[Talk], *, size: TeamSize, run: int
) -> int:
    """Play all talks to their end and return how many tokens were sampled."""
    count = turns = 0
    active: list[tuple[GenerationHandle, Talk, int]] = []

    def ask(talk: Talk, prompt: Ids, length: int) -> None:
        nonlocal turns
        turns += 1
        config = sampling(size, length, seed=run << 32 | turns)
        handle = pipeline.add_request(turns, Tensor(prompt[None].astype(np.int64)), config)
        active.append((handle, talk, length))

    for talk in played[:: size.samples]:
        ask(talk, *next(talk))
    while not all(handle.can_read() for handle, _, _ in active):
        pipeline.step()
    for number, talk in enumerate(played):
        if number % size.samples:
            ask(talk, *next(talk))
    while active:
        pipeline.step()
        before, active = active, []
        for handle, talk, length in before:
            if handle.get_status() == GenerationStatus.RUNNING:
                active.append((handle, talk, length))
                continue
            [output] = handle.read_all()
            assert len(output.generated_ids) == length, "a turn ended by itself"
            count += length
            try:
                ask(talk, *talk.send(np.array(output.generated_ids, np.int32)))
            except StopIteration:
                continue
    return count


def sampling(size: TeamSize, length: int, *, seed: int) -> GenerationConfig:
    """Return how to draw so many tokens from the whole distribution."""
    return GenerationConfig(
        max_new_tokens=length, ignore_eos=True, eos_token_id=vocabulary(size.model),
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, rng_seed=seed,
        logprobs=int(size.trains),
    )  # fmt: skip
