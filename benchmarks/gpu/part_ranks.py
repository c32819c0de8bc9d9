"""Trains on one rank in a process of its own: FSDP2 and replicas over NCCL."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial

import torch

from benchmarks.gpu.checks import Figures, Machine, add_checks
from benchmarks.gpu.models import make_turns
from benchmarks.gpu.part_engine import make_family
from benchmarks.gpu.part_learner import build_learner
from rolecall.algorithms.grpo import Grpo
from rolecall.config.schema import Adapter
from rolecall.learners.packing import pack
from rolecall.learners.ranks.group import RankGroup
from rolecall.learners.ranks.learner import RankedLearner
from tests.learners.test_ranks import assert_same_updates, assert_same_weights, spec_of

KINDS = ("replicated", "fsdp")
ADAPTERS = {"whole": None, "adapter": Adapter(rank=4, alpha=8, targets="all-linear")}


def one_rank_equals_no_rank(machine: Machine, *, kind: str, trained: str) -> Figures:
    """Updates, weights and a resumed update are those of a learner in this process."""
    base = make_family(machine, "Qwen3", "full")
    device = "cpu" if machine.is_dry else "cuda:0"
    spec = spec_of(base, kind, adapter=ADAPTERS[trained])
    group = RankGroup(1, device_of=lambda rank: device)
    try:
        ranked = RankedLearner(group, f"{kind}-{trained}", spec)
        local = build_learner(spec, torch.device(device))
        turns = make_turns(16, prompt=20, tokens=24, vocabulary=290, shared=4)
        batches = pack(turns, budget=400, by_agent=False)
        for _ in range(2):
            updates = [
                asyncio.run(learner.update([batches], Grpo(), per_agent=False))
                for learner in (ranked, local)
            ]
            assert_same_updates(*updates)
        folder = machine.scratch / f"ranks-{kind}-{trained}"
        shutil.rmtree(folder, ignore_errors=True)
        assert_same_weights(ranked, local, folder / "weights")
        (folder / "saved").mkdir()
        ranked.save(folder / "saved")
        again = RankedLearner(group, f"{kind}-{trained}-again", spec)
        again.load(folder / "saved")
        updates = [
            asyncio.run(learner.update([batches], Grpo(), per_agent=False))
            for learner in (ranked, again)
        ]
        assert_same_updates(*updates)
        return {"gradient norm": updates[0][0].grad_norm}
    finally:
        group.close()


add_checks(
    "ranks",
    {
        f"{kind}_{trained}": partial(one_rank_equals_no_rank, kind=kind, trained=trained)
        for kind in KINDS
        for trained in ADAPTERS
    },
)
