"""Loops that run in numba's threads: every index once, and errors of the bodies."""

from __future__ import annotations

import numpy as np
import pytest
from numba import get_num_threads, njit, set_num_threads

from rolecall.models.cpu.parallel import in_parallel


@njit
def _count(index, found, step):
    found[index] += step


@njit
def count(found, number):
    in_parallel(_count, number, (found, 2))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 1000])
def test_the_body_is_called_once_for_each_index(number):
    found = np.zeros(1001, np.int64)
    count(found, number)
    assert found.tolist() == [2] * number + [0] * (1001 - number)


@njit
def _wait_for_others(index, called):
    """Let the first call wait until all others are done, at most some seconds."""
    turns = 0
    while index == 0 and called.sum() < len(called) - 1 and turns < 10**9:
        turns += 1
    called[index] = 1 if turns < 10**9 else 2


@njit
def wait_for_others(called):
    in_parallel(_wait_for_others, len(called), (called,))


@pytest.mark.skipif(get_num_threads() < 2, reason="one processor runs one thread")
def test_a_thread_takes_from_the_share_of_one_that_is_busy():
    """The first call, and those behind it in its share, belong to one thread."""
    before, called = get_num_threads(), np.zeros(64, np.int64)
    try:
        set_num_threads(2)
        wait_for_others(called)
    finally:
        set_num_threads(before)
    assert called.tolist() == [1] * 64


@njit
def _fill_much(index, sizes, found):
    room = np.zeros(sizes[index], np.float32)
    found[index] = len(room)


@njit
def fill_much(sizes, found):
    in_parallel(_fill_much, len(sizes), (sizes, found))


def test_a_body_without_memory_raises_and_the_others_are_done():
    found = np.zeros(4, np.int64)
    with pytest.raises(MemoryError):
        fill_much(np.array([1, 2**58, 3, 4]), found)
    assert found.tolist() == [1, 0, 3, 4]
    fill_much(np.array([1, 2, 3, 4]), found)
    assert found.tolist() == [1, 2, 3, 4]


@njit
def twice(found):
    for _ in range(2):
        in_parallel(_count, 3, (found, 1))
    in_parallel(_count, 2, (found, 5))


def test_one_function_can_run_several_loops():
    found = np.zeros(3, np.int64)
    twice(found)
    assert found.tolist() == [7, 7, 2]
