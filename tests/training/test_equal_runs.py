"""Three equal runs of each kind of update: equal bits in weights, heads, critics and moments.

The runs are large enough for PyTorch to share their gradients' sums out among threads, which
smaller ones are not.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import killed_run
from tests.algorithms.test_every_algorithm import NAMES, assert_equal, case, train
from tests.conftest import make_model
from tests.support.evidence import leave_to_evidence
from tests.toy import LIKE_GRPO, write

pytestmark = pytest.mark.slow

RUNS = 3


def large(folder: Path, name: str) -> dict:
    """More ids in a batch than PyTorch leaves to one thread."""
    config = case(
        folder,
        name,
        trainer={"steps": 1, "save_every": 1},
        evaluation={"tasks": 0},
        rollout={"groups": 1, "group_size": 8},
    )
    for agent in config["team"].values():
        agent["sampling"] = {"max_tokens": 48}
    return config


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("wide"), "qwen3", spread=0.1, width=128)


def shift_memory(seed: int) -> list[object]:
    """Odd pieces of memory, so that what comes next lies elsewhere than in the run before."""
    sizes = random.Random(seed).choices(range(1, 5000), k=200)
    held = [np.ones(size, dtype=np.uint8) for size in sizes]
    return [*held, *(torch.ones(size) for size in sizes[::3])][::2]


OWN_SUMS = [name for name in NAMES if name not in LIKE_GRPO]


@pytest.mark.parametrize("name", leave_to_evidence(OWN_SUMS, keep=["ppo", "qmix"]))
def test_equal_runs_one_after_another_end_with_the_same_bits(wide, tmp_path, name):
    config = large(wide, name)
    held = []
    for number in range(RUNS):
        train(config, tmp_path / str(number))
        held.append(shift_memory(number))
    for number in range(1, RUNS):
        assert_equal(tmp_path / "0", tmp_path / str(number))


@pytest.mark.evidence
def test_a_run_in_a_process_of_its_own_ends_with_the_bits_of_one_here(wide, tmp_path):
    """Each with two threads."""
    path = write(tmp_path / "ppo.yaml", large(wide, "ppo"))
    before = torch.get_num_threads()
    try:
        killed_run.run(path, tmp_path / "here", "never", 0, 2)
    finally:
        torch.set_num_threads(before)
    made = subprocess.run(
        [sys.executable, killed_run.__file__, path, tmp_path / "there", "never", "0", "2"],
        timeout=120, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert_equal(tmp_path / "here", tmp_path / "there")
