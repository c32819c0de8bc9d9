"""What a step of a run allocates is free again after it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rolecall.runtime.memory import seldom_collected
from tests.learners.test_memory import LARGEST_GROWTH, STATM

pytestmark = pytest.mark.slow

# In a process of its own: what other tests have left would be freed and taken meanwhile.
STEPS = """
import sys
from pathlib import Path
from rolecall.runtime.memory import keep_freed_memory
from rolecall_lab.bench import rolecall_step
from rolecall_lab.bench.grpo_step import StepSize
from tests.learners.test_memory import resident

keep_freed_memory()  # as every run does
size = StepSize("xs", tasks=2, samples=4, prompt=40, completion=20)
step = rolecall_step.set_up(size, Path(sys.argv[1]))
for number in range(60):
    step(number)
before = resident()
for number in range(60, 260):
    step(number)
print("growth", resident() - before)
"""


@pytest.mark.skipif(not STATM.is_file(), reason="only Linux says in /proc what a process holds")
@pytest.mark.evidence
def test_memory_stays_flat_over_200_steps_of_sampling_and_training(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STEPS, tmp_path], capture_output=True, text=True, check=True
    )
    growth = float(done.stdout.rpartition("growth ")[2])
    assert growth < LARGEST_GROWTH


def test_garbage_is_looked_for_seldom_while_anybody_plays_and_as_before_afterwards():
    before = gc.get_threshold()
    first, second = seldom_collected(), seldom_collected()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # not the one that came last
    assert gc.get_threshold()[0] == 100_000
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
    gc.set_threshold(0)  # switched off by the user
    try:
        with seldom_collected():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
