"""What a step of a run allocates is free again after it."""

from __future__ import annotations

import gc

import pytest

from rolecall.runtime.memory import keep_freed_memory, seldom_collected
from rolecall_lab.bench import rolecall_step
from rolecall_lab.bench.grpo_step import StepSize
from tests.learners.test_memory import LARGEST_GROWTH, STATM, resident

pytestmark = pytest.mark.slow

SIZE = StepSize("xs", tasks=2, samples=4, prompt=40, completion=20)


@pytest.mark.skipif(not STATM.is_file(), reason="only Linux says in /proc what a process holds")
@pytest.mark.evidence
def test_memory_stays_flat_over_200_steps_of_sampling_and_training(tmp_path):
    keep_freed_memory()  # as every run does
    step = rolecall_step.set_up(SIZE, tmp_path)
    for number in range(60):
        step(number)
    before = resident()
    for number in range(60, 260):
        step(number)
    assert resident() - before < LARGEST_GROWTH


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
