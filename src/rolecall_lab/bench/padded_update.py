"""Measures how fast plain PyTorch trains on turns: padded on the right, in micro-batches.

Turns of similar length share a micro-batch, of the size that was the fastest of 4, 8, 16, 32, 64.
The loss is GRPO's as our algorithm has it: the mean over turns of their tokens' means, ratio
clipped, tokens weighted by what sampler and learner disagree on (at most 2).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rolecall.core.types import Turn
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.update import CLIP_NORM, LEARNING_RATE, turns
from rolecall_lab.bench.workload import TeamSize

MICRO_BATCH = 8  # turns
CLIP, LARGEST_WEIGHT = 0.2, 2.0


def set_up(size: TeamSize, folder: Path) -> Measure:
    base = random_model(folder, size.model)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def measure(run: int) -> Measured:
        sampled_turns = turns(size, run)
        started = time.perf_counter()
        facts = _update(model, optimizer, sampled_turns)
        return Measured(1.0 / (time.perf_counter() - started), facts)

    return measure


def _update(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, sampled_turns: list[Turn]
) -> dict[str, float]:
    whole = 0.0
    sampled_turns = sorted(sampled_turns, key=lambda turn: sum(map(len, turn.ids)))
    for first in range(0, len(sampled_turns), MICRO_BATCH):
        loss = _loss(model, sampled_turns[first : first + MICRO_BATCH]) / len(sampled_turns)
        loss.backward()
        whole += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"loss": whole, "gradient norm": float(norm)}


def _loss(model: torch.nn.Module, sampled_turns: list[Turn]) -> Tensor:
    """Sum over the turns [R] of the mean loss of their tokens; no mask is needed behind them."""
    columns = [
        [np.concatenate(turn.ids), _behind_prompt(turn, 1.0), _behind_prompt(turn, turn.logprobs),
         _behind_prompt(turn, turn.advantages)]
        for turn in sampled_turns
    ]  # fmt: skip
    ids, mask, old, advantages = (
        torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, column)), batch_first=True)
        for column in zip(*columns, strict=True)
    )
    logits = model(input_ids=ids.long(), use_cache=False).logits[:, :-1]
    targets = ids[:, 1:, None].long()
    logprobs = logits.log_softmax(-1).gather(-1, targets)[..., 0]
    mask, old, advantages = mask[:, 1:], old[:, 1:], advantages[:, 1:]
    before = logprobs.detach()
    ratio = (logprobs - before).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    weight = ((before - old) * mask).exp().clamp(max=LARGEST_WEIGHT)
    return -((objective * weight * mask).sum(1) / mask.sum(1)).sum()


def _behind_prompt(turn: Turn, values: np.ndarray | float | None) -> np.ndarray:
    """Zeros for the prompt, then the values [T]: [P + T]."""
    prompt, tokens = turn.ids
    row = np.zeros(len(prompt) + len(tokens), dtype=np.float32)
    row[len(prompt) :] = values
    return row
