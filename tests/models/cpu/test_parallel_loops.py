"""Loops that run in numba's threads: every index once, and errors of the bodies."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

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
