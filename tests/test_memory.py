"""What a step of a run allocates is free again after it."""

from __future__ import annotations

import gc
import resource
import sys
from types import ModuleType

import pytest

from rolecall.bench import rolecall_step
from rolecall.bench.grpo_step import StepSize
from rolecall.cli.main import main
from rolecall.runtime.memory import (
    importing,
    keep_freed_memory,
    seldom_collected,
    with_room_for_frames,
)
from tests.learners.test_memory import LARGEST_GROWTH, STATM, resident

SIZE = StepSize("xs", tasks=2, samples=4, prompt=40, completion=20)


@pytest.mark.skipif(not STATM.is_file(), reason="only Linux says in /proc what a process holds")
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


def test_nothing_is_collected_while_modules_are_imported_and_what_came_stays(monkeypatch):
    frozen = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen, "no module came: what is garbage can still be found"
    try:
        with importing():
            monkeypatch.setitem(sys.modules, "a_module_that_came", ModuleType("it"))
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled(), "switched off by the user"
    finally:
        gc.enable()


def needs_memory_for_frames(depth: int) -> int:
    """Page faults of 1,000 calls from a frame so deep."""
    if depth:
        return needs_memory_for_frames(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(1000):
        large_frame()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def large_frame() -> None: ...


large_frame.__code__ = large_frame.__code__.replace(co_stacksize=150)


def most_needed() -> int:
    return max(needs_memory_for_frames(depth) for depth in range(150))


def test_calls_at_no_depth_ask_for_memory_each_time():
    plain = type(most_needed)(most_needed.__code__, globals())
    assert plain() >= 1000, "Python's own way has changed: with_room_for_frames is not needed"
    assert with_room_for_frames(most_needed)() < 100
    assert main.__code__.co_stacksize == most_needed.__code__.co_stacksize
