"""What one update allocates is free again after it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rolecall.learners.packing import pack
from rolecall_lab.bench.crowd import resident_bytes
from tests.learners.test_local import learner_of, update
from tests.learners.test_packing import turns_of
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

STATM = Path("/proc/self/statm")
LARGEST_GROWTH = 4.0  # MB; a leak of one gradient an update would be 28 after 200, 8 after 60


@pytest.mark.skipif(not STATM.is_file(), reason="only Linux says in /proc what a process holds")
@pytest.mark.parametrize("number", leave_to_evidence([60, 200], keep=[60]))
def test_memory_stays_flat_over_many_updates(number, model_folder):
    learner = learner_of(model_folder)
    groups = [turns_of(8, agents=("solver", "verifier"), seed=seed) for seed in range(10)]

    def grow(updates: int) -> float:
        """MB of resident memory that this many updates add."""
        before = resident()
        for count in range(updates):
            batches = pack(groups[count % 10], budget=150, by_agent=bool(count % 2))
            update(learner, batches, per_agent=bool(count % 2))
        return resident() - before

    grow(40)  # the allocator's pools and the optimizer's moments
    assert grow(number) < LARGEST_GROWTH


def resident() -> float:
    gc.collect()
    return resident_bytes() / 1e6
