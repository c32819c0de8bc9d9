"""A run over Ray whose engines, ranks, workers and trainer are ended at random loses nothing.

ROLECALL_KILLS=100 makes it a long one; ROLECALL_KILLS_SEED chooses other moments.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rolecall.runs.api import train
from rolecall.runtime.scratch import MEMORY, SHARED
from tests.cluster.killing import KilledRun, all_gone, planned, records
from tests.toy import alike, language_model, relay_config, write

pytestmark = pytest.mark.alone

KILLS = int(os.environ.get("ROLECALL_KILLS", "6"))
SEED = int(os.environ.get("ROLECALL_KILLS_SEED", "1"))
GROUPS, ATTEMPTS, AGENTS = 3, 4, {"left", "right", "last"}
SLACK_S = 60.0  # for the start and the end
EACH_S = 60.0  # for a kill, on a machine with other work


def config_of(model: Path, *, steps: int) -> dict:
    # Without a large eps the first steps of Adam follow the signs of gradients, so that the
    # rounding of a sum decides over where a weight goes.
    optimizer = {"lr": 1e-3, "eps": 1e-4}
    return relay_config(
        model,
        policies={name: {"base": str(model), "optimizer": optimizer} for name in ("a", "b")},
        trainer={"steps": steps, "save_every": 3},
        rollout={"groups": GROUPS, "group_size": ATTEMPTS},
        evaluation={"tasks": 0},
    ) | {
        "cluster": {
            "name": "ray", "address": "local", "heartbeat_s": 3.0, "restarts": 1000,
            "start_timeout_s": 60.0, "workers": 2,
        },
        "engine": {"name": "local", "replicas": 2, "cache_gb": 0.05},
        "learner": {"name": "fsdp", "ranks": 2, "device": "cpu"},
    }  # fmt: skip


def rows_of(run: Path, step: int) -> list[dict]:
    return pq.read_table(run / f"episodes/step-{step:06d}.parquet").to_pylist()


def weights_of(run: Path, steps: int) -> torch.Tensor:
    """Of both policies, as `transformers` loads them."""
    models = [language_model(run / f"checkpoints/step-{steps}" / name) for name in ("a", "b")]
    parts = [p.detach().flatten() for model in models for _, p in model.named_parameters()]
    return torch.cat(parts)


@pytest.mark.timeout(2 * (SLACK_S + EACH_S * KILLS) + 300)
def test_random_kills_cost_no_step_no_episode_and_no_turn(model_folder, tmp_path):
    """And it goes the way of a run that nothing has happened to.

    Not to the same bits: engines compute whichever requests have come together, and log-probs of a
    row are rounded otherwise in another company.
    """
    steps, before = KILLS + 3, set(MEMORY.glob(f"{SHARED}*"))
    config = write(tmp_path / "team.yaml", config_of(model_folder, steps=steps))
    run, kills = tmp_path / "run", planned(SEED, KILLS, drivers=max(1, KILLS // 10))
    killed = KilledRun(config, run, kills, seed=SEED)
    status = killed.train(within_s=SLACK_S + EACH_S * KILLS)
    assert status == 0, killed.output.read_text()[-4000:]
    assert len(killed.done) == KILLS
    assert records(run) == list(range(1, steps + 1))
    assert_whole(run, steps)
    found = weights_of(run, steps)
    assert bool(torch.isfinite(found).all())
    assert all_gone(within_s=180.0) == []
    assert not set(MEMORY.glob(f"{SHARED}*")) - before  # also of those that were killed
    calm = tmp_path / "calm"
    train(config, output=calm)
    if not part_by_rounding(run, calm, steps):
        assert alike(found, weights_of(calm, steps))


def part_by_rounding(run: Path, calm: Path, steps: int) -> bool:
    """Whether rounding has decided over a token, after which two runs are not the same any more.

    Up to it all is the same: of a lost update, or of weights of another version, log-probs would
    be off by a hundred times as much.
    """
    for step in range(1, steps + 1):
        parted = 0
        other = {row["turn"]: row for row in rows_of(calm, step)}
        for row in rows_of(run, step):
            wanted = other.pop(row["turn"])
            if row["prompt_token_ids"] != wanted["prompt_token_ids"]:
                assert parted, "an answer that it reads is another one"
                continue
            pairs = list(zip(row["token_ids"], wanted["token_ids"], strict=False))
            same = [one == two for one, two in pairs]
            number = same.index(False) if False in same else len(same)
            parted += row["token_ids"] != wanted["token_ids"]
            gaps = np.subtract(row["logprobs"][:number], wanted["logprobs"][:number])
            assert np.abs(gaps).max(initial=0.0) < 1e-4, (step, row["turn"])
        assert not other
        assert parted <= 2, step
        if parted:
            return True
    return False


def assert_whole(run: Path, steps: int) -> None:
    """Every group has all its attempts, and every episode all its turns, once."""
    seen: Counter[str] = Counter()
    for step in range(1, steps + 1):
        rows = rows_of(run, step)
        seen.update(row["turn"] for row in rows)
        episodes = Counter((row["task"], row["attempt"]) for row in rows)
        assert set(episodes.values()) == {len(AGENTS)}, step
        assert len({task for task, _ in episodes}) == GROUPS, step
        assert len(episodes) == GROUPS * ATTEMPTS, step
    assert set(seen.values()) == {1}


def tokens_of(run: Path, step: int) -> dict[str, list[int]]:
    return {row["turn"]: row["token_ids"] for row in rows_of(run, step)}
