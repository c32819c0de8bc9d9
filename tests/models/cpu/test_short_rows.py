"""Norms, rotations and their gradients of single rows, beside PyTorch's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from rolecall.models.cpu import short_rows
from rolecall.models.cpu.elementary import MATH, NUMBER

SIZES = (8, 16, 24, 32, 64, 72, 128)
EPS = 1e-6
_U = np.uintp


@njit
def address(x, n):
    return _U(x.ctypes.data) + _U(n) * NUMBER


@njit(fastmath=MATH)  # as in attention: flags of the loop must not reach the function
def sum_products(x, y, size):
    return short_rows.sum_products(address(x, 1), address(y, 1), _U(size)), x[0] + y[0]


@njit
def normalize(x, weight, out, size, eps):
    short_rows.normalize_row(
        address(x, 1), address(weight, 1), address(out, 1), _U(size), np.float32(eps)
    )


@njit
def normalize_backward(grad, x, weight, dx, d_weight, size, eps):
    short_rows.normalize_row_backward(
        address(grad, 1), address(x, 1), address(weight, 1), address(dx, 1),
        address(d_weight, 1), _U(size), np.float32(eps),
    )  # fmt: skip


@njit
def rotate(x, cos, sin, size):
    short_rows.rotate_row(address(x, 1), address(cos, 1), address(sin, 1), _U(size // 2))


@njit
def rotate_backward(grad, cos, sin, dx, size):
    short_rows.rotate_row_backward(
        address(grad, 1), address(cos, 1), address(sin, 1), address(dx, 1), _U(size // 2)
    )


@njit(fastmath=MATH)
def weigh_pulls(weights, pulls, along, size):
    short_rows.weigh_pulls(address(weights, 1), address(pulls, 1), np.float32(along), _U(size))


def draw_rows(size: int, *, number: int) -> list[np.ndarray]:
    """Return rows [1 + size + 1], whose first and last number nothing may touch."""
    random = np.random.default_rng(size)
    rows = random.standard_normal((number, size + 2)).astype(np.float32)
    rows[:, 0], rows[:, -1] = 77.0, 88.0
    return list(rows)


def inside(row: np.ndarray, *, leaf: bool = False) -> Tensor:
    assert (row[0], row[-1]) == (77.0, 88.0), "it wrote beside the row"
    return torch.from_numpy(row[1:-1].astype(np.float64)).requires_grad_(leaf)


def check_close(row: np.ndarray, expected: Tensor) -> None:
    torch.testing.assert_close(inside(row), expected.detach(), rtol=1e-5, atol=1e-6)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    lower, upper = x.chunk(2)
    return x * cos + torch.cat([-upper, lower]) * sin


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_products(size):
    x, y = draw_rows(size, number=2)
    total = (inside(x) * inside(y)).sum()
    assert sum_products(x, y, size)[0] == pytest.approx(float(total), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("eps", [EPS, 0.5])
def test_norms_and_their_gradients(size, eps):
    x, weight, grad, out, dx, d_weight = draw_rows(size, number=6)
    exact_x, exact_weight, before = (
        inside(x, leaf=True),
        inside(weight, leaf=True),
        inside(d_weight),
    )
    norm = torch.nn.functional.rms_norm(exact_x, (size,), exact_weight, eps)
    norm.backward(inside(grad))
    normalize(x, weight, out, size, eps)
    check_close(out, norm)
    normalize_backward(grad, x, weight, dx, d_weight, size, eps)
    check_close(dx, exact_x.grad)
    check_close(d_weight, before + exact_weight.grad)
    normalize(x, weight, x, size, eps)
    assert x.tobytes() == out.tobytes(), "in place it computes the same"


@pytest.mark.parametrize("size", SIZES)
def test_rotations_and_their_gradients(size):
    x, cos, sin, grad, dx = draw_rows(size, number=5)
    exact = inside(x, leaf=True)
    turned = rotated(exact, inside(cos), inside(sin))
    turned.backward(inside(grad))
    rotate(x, cos, sin, size)
    check_close(x, turned)
    rotate_backward(grad, cos, sin, dx, size)
    check_close(dx, exact.grad)


@pytest.mark.parametrize("size", SIZES)
def test_pulls_are_weighed(size):
    weights, pulls = draw_rows(size, number=2)
    expected = inside(weights) * (inside(pulls) - 0.25)
    weigh_pulls(weights, pulls, 0.25, size)
    check_close(pulls, expected)


def test_a_row_that_is_not_finite_stays_so():
    x, weight, out = draw_rows(32, number=3)
    x[5] = np.nan
    normalize(x, weight, out, 32, EPS)
    assert np.isnan(out[1:-1]).all()
    x[5] = np.inf
    normalize(x, weight, out, 32, EPS)
    assert np.isnan(out[5]), "infinity times 0"
