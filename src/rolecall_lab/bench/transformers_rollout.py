"""Measures how fast `generate` samples a team's talks: one agent at a time for all episodes.

The way of public frameworks: a phase is one batch, padded on the left, and runs until its longest
turn is over. Only the tokens that were asked for are counted.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rolecall.core.types import Ids
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.workload import Talk, TeamSize, talks

PADDING = 0  # hidden by the mask


def set_up(size: TeamSize, folder: Path) -> Measure:
    base = random_model(folder, size.model)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, size.dtype)).eval()

    def measure(run: int) -> Measured:
        played = talks(size, run)
        torch.manual_seed(run)
        started = time.perf_counter()
        count = _play_all(model, played)
        return Measured(count / (time.perf_counter() - started), {"sampled tokens": count})

    return measure


def _play_all(model: torch.nn.Module, played: list[Talk]) -> int:
    """Return how many tokens were asked for; a phase is over when all of its turns are."""
    count = 0
    calls = [(talk, *next(talk)) for talk in played]
    while calls:
        sampled = _generate(model, [prompt for _, prompt, _ in calls], [n for _, _, n in calls])
        count += sum(map(len, sampled))
        following = []
        for (talk, _, _), ids in zip(calls, sampled, strict=True):
            try:
                following.append((talk, *talk.send(ids)))
            except StopIteration:
                continue
        calls = following
    return count


def _generate(model: torch.nn.Module, prompts: list[Ids], lengths: list[int]) -> list[Ids]:
    """Prompts of any lengths -> as many sampled tokens as each is asked for."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), PADDING)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, longest - len(prompt) :] = 1
    out = model.generate(  # type: ignore[operator]  # of transformers' mixin
        input_ids=ids, attention_mask=mask, max_new_tokens=max(lengths), pad_token_id=PADDING,
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
    )  # fmt: skip
    sampled = out[:, longest:].numpy().astype(np.int32)
    return [row[:length] for row, length in zip(sampled, lengths, strict=True)]
