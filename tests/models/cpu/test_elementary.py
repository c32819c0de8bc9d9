"""Exponentials and the largest of a row, as the loops compute them."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from rolecall.models.cpu import elementary


@njit(fastmath=elementary.EACH)
def exp_of(x, out):
    for i in range(len(x)):
        out[i] = elementary.exp(x[i])


@njit
def largest_of(x, first, count):
    at = np.uintp(x.ctypes.data) + np.uintp(first) * elementary.NUMBER
    return elementary.largest(at, np.uintp(count)), x[0]


@njit(fastmath=elementary.MATH)
def exponentials_of(x, first, count, most):
    return elementary.exponentials(x, np.uintp(first), np.uintp(count), most)


def test_exponentials_are_those_of_float64():
    x = np.concatenate([np.linspace(-87, 87, 100_001), [0.0, -0.0, 1e-30]]).astype(np.float32)
    out = np.empty_like(x)
    exp_of(x, out)
    wanted = np.exp(x.astype(np.float64))
    assert (np.abs(out - wanted) <= 3e-7 * wanted).all()


def test_exponentials_of_numbers_that_are_out_of_range():
    x = np.array([-np.inf, -1e30, -88, 88, 1e30, np.inf, np.nan] * 5, np.float32)
    out = np.empty_like(x)
    exp_of(x, out)
    low, high = np.exp(np.float32(-87.0)), np.exp(np.float32(87.0))
    wanted = np.array([low] * 3 + [high] * 3 + [np.nan], np.float32)
    assert np.allclose(out, np.tile(wanted, 5), rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("count", [0, 1, 5, 31, 32, 33, 64, 100])
def test_the_largest_of_a_row_and_nothing_beside_it(count):
    random = np.random.default_rng(count)
    for place in range(count):
        x = random.standard_normal(count + 10).astype(np.float32)
        x[:3], x[3 + count :] = 99.0, 99.0
        x[3 + place] = 9.0
        assert largest_of(x, 3, count)[0] == 9.0
        x[3 + (place + 1) % count] = np.nan if count > 1 else 9.0
        assert largest_of(x, 3, count)[0] == 9.0, "NaN is not the largest"
    if not count:
        assert largest_of(np.ones(4, np.float32), 2, 0)[0] == -np.inf


@pytest.mark.parametrize("count", [1, 16, 50])
def test_a_row_becomes_its_exponentials_and_their_sum(count):
    x = np.random.default_rng(0).standard_normal(count + 4).astype(np.float32)
    before = x.copy()
    total = exponentials_of(x, 2, count, np.float32(1.5))
    wanted = np.exp(before[2 : 2 + count].astype(np.float64) - 1.5)
    assert np.allclose(x[2 : 2 + count], wanted, rtol=1e-6)
    assert total == pytest.approx(wanted.sum(), rel=1e-6)
    assert np.array_equal(x[[0, 1, -2, -1]], before[[0, 1, -2, -1]])
