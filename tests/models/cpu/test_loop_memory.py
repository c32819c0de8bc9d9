"""Memory that loops take themselves, and that they count no references."""

from __future__ import annotations

import importlib
import pkgutil
import resource

import numpy as np
import pytest
from numba import njit
from numba.core.dispatcher import Dispatcher

from rolecall.models import cpu
from rolecall.models.cpu.loop_memory import LINE, give_back, taken, view, zeros


@njit
def use(count, found):
    numbers, none = taken(count, np.uint64), zeros(count, np.float32)
    for i in range(count):
        numbers[i] = np.uint64(i)
    found[0] = numbers.ctypes.data
    found[1] = none.ctypes.data
    total = 0
    for i in range(count):
        total += np.int64(numbers[i]) + np.int64(none[i] != np.float32(0.0))
        none[i] = np.float32(1.0)  # what the next one gets must be zeros again
    give_back(numbers)
    give_back(none)
    return total


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_memory_begins_with_a_cache_line_and_zeros_are_zeros(count):
    found = np.zeros(2, np.int64)
    for _ in range(3):
        assert use(count, found) == count * (count - 1) // 2
        assert (found % LINE).tolist() == [0, 0]


def test_what_is_given_back_is_used_again():
    found = np.zeros(2, np.int64)
    use(1_000_000, found)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        use(1_000_000, found)  # 12 MB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120_000  # kB


def test_memory_that_there_is_not_raises():
    with pytest.raises(MemoryError):
        use(2**58, np.zeros(2, np.int64))


def test_an_address_is_an_array():
    numbers = np.arange(5, dtype=np.float32)
    second = njit(lambda address: view(address, 3, np.float32).sum())
    assert second(numbers.ctypes.data + 4) == 1 + 2 + 3


def test_what_loops_are_made_of_counts_no_references():
    counting = [
        f"{module.__name__}.{name}"
        for found in pkgutil.iter_modules(cpu.__path__)
        for module in [importlib.import_module(f"{cpu.__name__}.{found.name}")]
        for name, one in vars(module).items()
        if isinstance(one, Dispatcher) and one.__module__ == module.__name__
        if one.targetoptions.get("_nrt", True) and not hasattr(one._cache, "_cache_file")
    ]
    once_a_layer = {
        f"{cpu.__name__}.tiled_layers.{name}"
        for name in ("_mix", "_finish", "_operand", "_array", "_linear")
    }
    assert set(counting) == once_a_layer
