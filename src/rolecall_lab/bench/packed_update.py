"""Measures how fast our learner trains on turns: packed, with prefixes computed once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import torch

from rolecall.algorithms.grpo import Grpo
from rolecall.config.learners import LocalLearnerConfig
from rolecall.config.optimizer import Optimizer
from rolecall.core.types import Turn
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.update import CLIP_NORM, LEARNING_RATE, turns
from rolecall_lab.bench.workload import TeamSize


def set_up(size: TeamSize, folder: Path) -> Measure:
    base = str(random_model(folder, size.model))
    network = load_model(base, device=torch.device("cpu"), dtype=torch.float32)
    learner = LocalLearner(
        LanguageModel(network, load_tokenizer(base)),
        Optimizer(lr=LEARNING_RATE, clip=CLIP_NORM),
        total_updates=1_000_000,
    )

    def measure(run: int) -> Measured:
        sampled_turns = turns(size, run)
        started = time.perf_counter()
        facts = asyncio.run(_update(learner, sampled_turns))
        return Measured(1.0 / (time.perf_counter() - started), facts)

    return measure


async def _update(learner: LocalLearner, sampled_turns: list[Turn]) -> dict[str, float]:
    algorithm, budget = Grpo(), LocalLearnerConfig().tokens_per_batch
    batches = pack(sampled_turns, budget=budget, skip_zero=algorithm.skips_zero, by_agent=False)
    [update] = await learner.update([batches], algorithm, per_agent=False)
    counts = {agent: sum(t.agent == agent for t in sampled_turns) for agent in update.agent_metrics}
    losses = {agent: metrics["loss"] for agent, metrics in update.agent_metrics.items()}
    return {
        "loss": sum(losses[agent] * counts[agent] for agent in counts) / len(sampled_turns),
        "gradient norm": update.grad_norm,
    }
