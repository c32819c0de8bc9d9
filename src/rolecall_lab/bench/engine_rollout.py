"""Measures how fast our local engine samples a team's talks, each episode on its own.

A coroutine an episode asks the engine for tokens as soon as its own last turn is over.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import torch

from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Ids
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.runtime import call_tree
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.workload import SEED, Talk, TeamSize, talks

POLICY = "policy"


def set_up(size: TeamSize, folder: Path) -> Measure:
    """Set the engine up as a run does by default: deterministic."""
    return _set_up(size, folder, deterministic=True)


def set_up_unordered(size: TeamSize, folder: Path) -> Measure:
    """Set the engine up to step as soon as it can."""
    return _set_up(size, folder, deterministic=False)


def _set_up(size: TeamSize, folder: Path, *, deterministic: bool) -> Measure:
    base = str(random_model(folder, size.model))
    network = load_model(base, device=torch.device("cpu"), dtype=getattr(torch, size.dtype))
    model = LanguageModel(network, load_tokenizer(base))
    return measure_talks(model, size, deterministic=deterministic)


def measure_talks(
    model: LanguageModel, size: TeamSize, *, deterministic: bool = True, cache_gb: float = 2.0
) -> Measure:
    """Return what measures the sampled tokens per second of a team's talks with this model."""
    barrier = call_tree.IdleBarrier()
    engine = LocalEngine(
        {POLICY: model}, barrier=barrier, deterministic=deterministic, cache_gb=cache_gb
    )
    runner = asyncio.Runner()  # an engine belongs to one event loop

    def measure(run: int) -> Measured:
        played = talks(size, run)
        started = time.perf_counter()
        if size.trains:
            engine.load(POLICY, run, None)
        count = runner.run(_play_all(engine, barrier, played, run=run))
        return Measured(count / (time.perf_counter() - started), {"sampled tokens": count})

    return measure


async def _play_all(
    engine: LocalEngine, barrier: call_tree.IdleBarrier, played: list[Talk], *, run: int
) -> int:
    async with asyncio.TaskGroup() as together:
        playing = [
            together.create_task(_play(engine, barrier, talk, run=run, number=number))
            for number, talk in enumerate(played)
        ]
    return sum(one.result() for one in playing)


async def _play(
    engine: LocalEngine, barrier: call_tree.IdleBarrier, talk: Talk, *, run: int, number: int
) -> int:
    """Play one episode and return how many tokens it sampled."""
    count, turn = 0, 0
    with call_tree.enter_scope((), barrier=barrier):
        prompt, length = next(talk)
        while True:
            tokens = await _ask(engine, prompt, length, name=(run, number, turn))
            count, turn = count + len(tokens), turn + 1
            try:
                prompt, length = talk.send(tokens)
            except StopIteration:
                return count


async def _ask(engine: LocalEngine, prompt: Ids, length: int, *, name: tuple[int, int, int]) -> Ids:
    _, number, turn = name
    request = Request(
        id="/".join(map(str, name)),
        policy=POLICY,
        prompt=prompt,
        sampling=Sampling(max_tokens=length),
        seed=derive_seed(SEED, *name),
        order=(f"{number:06d}", 0, (turn,)),
    )
    [completion] = await engine.generate(request)
    assert len(completion.tokens) == length, "a turn ended by itself"
    return completion.tokens
