"""Pages of keys and values: what is read through them is what attention over whole rows gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.cpu.kernels import PAGE
from tests.toy import alike

HEADS, KV_HEADS, SIZE = 4, 2, 24
SCALE = SIZE**-0.5


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rows as they are without a cache: q [H, T, D], k and v [K, T, D] -> [T, H, D]."""
    q, k, v = q.double(), k.double(), v.double()
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE, enable_gqa=True)
    return out.transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # numba takes the first
def test_rows_of_any_length_read_in_any_steps_give_what_whole_rows_give(dtype):
    torch.manual_seed(0)
    make = partial(numbers, dtype=dtype)
    lengths = [1, 5, PAGE, PAGE + 1, 3 * PAGE - 1, 70]
    rows = [
        (make(HEADS, n, SIZE), make(KV_HEADS, n, SIZE), make(KV_HEADS, n, SIZE)) for n in lengths
    ]
    cache = Cache(layers=2, pages=40, heads=KV_HEADS, size=SIZE, like=make(1))
    assert cache.runs_on_numba == (dtype == torch.float32)
    for store in (*cache.keys, *cache.values):
        store.fill_(1e30)  # what stands in a page behind a row must not count
    table = torch.randperm(40)[: 6 * 5].view(6, 5).to(torch.int32)
    starts = torch.zeros(6, dtype=torch.long)
    end = torch.tensor(lengths)
    found = [torch.zeros(n, HEADS, SIZE, dtype=dtype) for n in lengths]
    while (starts < end).any():
        here = (starts < end).nonzero()[:, 0]
        counts = torch.minimum(torch.randint(1, 30, (len(here),)), (end - starts)[here])
        layout = Paged(table[here], starts[here], counts, cache=cache)
        parts = [
            torch.cat(
                [
                    rows[r][i][:, s : s + c]
                    for r, s, c in zip(
                        here.tolist(), starts[here].tolist(), counts.tolist(), strict=True
                    )
                ],
                1,
            )
            for i in range(3)
        ]
        out = layout.attend(1, *parts, scale=SCALE)
        for r, part in zip(here.tolist(), out.split(counts.tolist()), strict=True):
            found[r][int(starts[r]) : int(starts[r]) + len(part)] = part
        starts[here] += counts
    for row, mine in zip(rows, found, strict=True):
        assert alike(mine, whole(*row), rounding=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # numba takes the first
def test_rows_that_begin_alike_read_the_same_pages_in_the_pass_that_fills_them(dtype):
    torch.manual_seed(1)
    make = partial(numbers, dtype=dtype)
    shared, own = 2 * PAGE, (3, 20)
    q, k, v = (
        make(HEADS, shared, SIZE),
        make(KV_HEADS, shared, SIZE),
        make(KV_HEADS, shared, SIZE),
    )
    tails = [(make(HEADS, n, SIZE), make(KV_HEADS, n, SIZE), make(KV_HEADS, n, SIZE)) for n in own]
    cache = Cache(layers=1, pages=8, heads=KV_HEADS, size=SIZE, like=make(1))
    assert cache.runs_on_numba == (dtype == torch.float32)
    table = torch.tensor([[5, 0, 3, 1], [5, 0, 7, 2]], dtype=torch.int32)
    layout = Paged(
        table, torch.tensor([0, shared]), torch.tensor([shared + own[0], own[1]]), cache=cache
    )
    parts = [torch.cat([x, *(tail[i] for tail in tails)], 1) for i, x in enumerate((q, k, v))]
    out = layout.attend(0, *parts, scale=SCALE)
    first = whole(*(torch.cat([x, tails[0][i]], 1) for i, x in enumerate((q, k, v))))
    second = whole(*(torch.cat([x, tails[1][i]], 1) for i, x in enumerate((q, k, v))))
    assert alike(out, torch.cat([first, second[shared:]]), rounding=2e-6)


def test_scores_of_any_size_and_numbers_that_are_none_come_out_as_softmax_has_them():
    cache = Cache(layers=1, pages=2, heads=1, size=8, like=numbers(1))
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    layout = Paged(table, torch.tensor([0]), torch.tensor([20]), cache=cache)
    for factor in (1e-20, 1.0, 1e3, 1e15):
        q, k, v = numbers(1, 20, 8) * factor, numbers(1, 20, 8), numbers(1, 20, 8)
        out = layout.attend(0, q, k, v, scale=1.0)
        assert (
            (out - scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1))
            .isfinite()
            .all()
        )
        expected = scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=True, scale=1.0
        )
        if factor <= 1e3:
            # Scores of a thousand have a rounding of their own, which the softmax shows.
            scores = float((q @ k.transpose(1, 2)).abs().max())
            assert alike(out, expected.transpose(0, 1), rounding=1e-6 * max(1.0, scores))
    k[0, 3, 0] = float("nan")
    out = layout.attend(0, q, k, v, scale=1.0)
    assert out[:3].isfinite().all()
    assert out[3:].isnan().all(), "a model that has diverged shows it"
