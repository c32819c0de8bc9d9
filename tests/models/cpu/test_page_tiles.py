"""Products of rows with pages are those of float64, and have equal bits in any company."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from rolecall.models.cpu.elementary import MATH
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.cpu.page_tiles import mix_pages, score_pages

_U = np.uintp
WITHOUT_AVX512 = {
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2", "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "",
}  # fmt: skip
BITS = """
import hashlib
import numpy as np
import torch
from rolecall.models.cpu.tiles import HAS_AVX512
from tests.models.cpu.test_page_tiles import mixed_of, numbers, scores_of
from tests.models.cpu.test_tiles import samples
from rolecall.models.attention.kv_cache import Paged
torch.manual_seed(0)
bits = hashlib.sha256()
for size in (8, 40, 64):
    rows, keys, values, pages = numbers(7, 9, size)
    scores = scores_of(rows, keys, pages)
    bits.update(scores.tobytes() + mixed_of(scores, values, pages, 137).tobytes())
    cache, table, starts = samples([3, 1, 0, 2], 5, 6, seed=0, size=size)
    counts = torch.ones_like(starts)
    given = (torch.randn(heads, len(starts), size) for heads in (4, 2, 2))
    bits.update(Paged(table, starts, counts, cache=cache).attend(0, *given, scale=0.2).numpy())
print(HAS_AVX512, bits.hexdigest())
"""


@njit(fastmath=MATH)  # as in the loops of attention
def _score(queries, size, keys, pages, scores):
    room = _U(len(pages) * PAGE)
    score_pages(
        _U(scores.ctypes.data), room, _U(queries.ctypes.data), _U(len(queries)),
        _U(keys.ctypes.data), pages, _U(0), _U(len(pages)), _U(size),
    )  # fmt: skip


@njit(fastmath=MATH)
def _mix(scores, values, pages, length, size, out):
    room = _U(len(pages) * PAGE)
    mix_pages(
        _U(out.ctypes.data), _U(scores.ctypes.data), room, _U(len(scores)), _U(values.ctypes.data),
        pages, _U(0), _U(len(pages)), _U(length), _U(size),
    )  # fmt: skip


def numbers(rows, count, size):
    """Rows [rows, D], pages of keys [.., D, PAGE] and of values [.., PAGE, D], where some begin."""
    random = np.random.default_rng(size)
    shapes = ((rows, size), (12, size, PAGE), (12, PAGE, size))
    pages = random.permutation(12)[:count].astype(np.uintp) * _U(size * PAGE)
    return *(random.standard_normal(shape).astype(np.float32) for shape in shapes), pages


def scores_of(queries, keys, pages):
    scores = np.full((len(queries), len(pages) * PAGE), np.nan, np.float32)
    _score(queries, queries.shape[1], keys.reshape(-1), pages, scores)
    return scores


def mixed_of(scores, values, pages, length):
    out = np.ones((len(scores), values.shape[2]), np.float32)
    _mix(scores, values.reshape(-1), pages, length, values.shape[2], out)
    return out


@pytest.mark.parametrize("size", [8, 24, 32, 40, 64, 128])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 9, 17])
def test_rows_meet_any_number_of_pages(rows, size):
    for count in range(1, 11):
        queries, keys, values, pages = numbers(rows, count, size)
        order = (pages // (size * PAGE)).astype(int)
        scores = scores_of(queries, keys, pages)
        wanted = np.einsum("rd,pdt->rpt", queries.astype(np.float64), keys[order])
        assert np.abs(scores - wanted.reshape(scores.shape)).max(initial=0.0) <= 1e-4
        for length in (count * PAGE, count * PAGE - 5):
            seen = values[order].reshape(-1, size)[:length].astype(np.float64)
            out = mixed_of(scores, values, pages, length)
            assert np.abs(out - 1.0 - scores[:, :length] @ seen).max(initial=0.0) <= 5e-3
            for row in range(rows):
                one = slice(row, row + 1)
                assert np.array_equal(scores_of(queries[one], keys, pages), scores[one])
                assert np.array_equal(mixed_of(scores[one], values, pages, length), out[one])


@pytest.mark.slow
@pytest.mark.evidence  # it compiles all of attention anew
def test_processors_without_avx512_compute_the_same_bits(tmp_path):
    def bits(**environment):
        done = subprocess.run(
            [sys.executable, "-c", BITS], capture_output=True, text=True, check=True,
            env=os.environ | environment | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": "."},
        )  # fmt: skip
        return done.stdout.split()

    assert bits(**WITHOUT_AVX512) == ["False", bits()[1]]
