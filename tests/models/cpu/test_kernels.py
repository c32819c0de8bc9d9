"""A run that compiles the kernels computes the bits of one that finds them in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def digests(cache: Path) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/kernel_bits.py")],
        env=environment, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.evidence  # it compiles all loops anew, which takes half a minute
def test_compiled_and_cached_kernels_compute_the_same_bits(tmp_path):
    compiled = digests(tmp_path)
    assert len(compiled) == 19
    assert any(tmp_path.rglob("*.nbc")), "the second run finds them"
    assert digests(tmp_path) == compiled


THREADS = """
import numba
import torch
from rolecall.models.cpu import kernels

torch.set_num_threads(1)
kernels.use_threads()
print(numba.config.NUMBA_NUM_THREADS, numba.get_num_threads(), torch.get_num_threads())
"""


def test_the_pool_of_the_kernels_leaves_pytorch_its_number_of_threads():
    """It asks OpenMP for all cores when it begins. Runs that were told to use one thread then used
    two, and runs beside one another took ten times as long."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        env=environment, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["2", "1", "1"]
