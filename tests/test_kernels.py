"""A run that compiles the kernels computes the bits of one that finds them in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def digests(cache: Path) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/kernel_bits.py")],
        env=environment, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_compiled_and_cached_kernels_compute_the_same_bits(tmp_path):
    compiled = digests(tmp_path)
    assert len(compiled) == 8
    assert any(tmp_path.rglob("*.nbc")), "the second run finds them"
    assert digests(tmp_path) == compiled
