"""Results do not depend on where arrays lie in memory.

LLVM asks whether arrays that a loop writes lie just behind what it reads, and then takes a loop
without vectors: both must round alike, or a run that goes on ends with other bits.
"""

from __future__ import annotations

from itertools import islice, permutations

import numpy as np
import pytest

from rolecall.models.cpu import kernels

EPS = np.float32(1e-6)
P = kernels.PARTS
KERNELS = {  # lengths of arrays, of which the last are written, in rows of a size
    "norm": ([1, 1, 1], lambda s, x, w, out: kernels.norm(x, w, s, EPS, out)),
    "norm backward": (
        [1, 1, 1, 1, P],
        lambda s, grad, x, w, dx, parts: kernels.norm_backward(grad, x, w, s, EPS, dx, parts),
    ),
    "rope": ([1] * 5, lambda s, x, w, cos, sin, out: kernels.rope(x, w, EPS, cos, sin, 1, s, out)),
    "rope backward": (
        [1, 1, 1, 1, 1, 1, P],
        lambda s, grad, x, w, cos, sin, dx, parts: kernels.rope_backward(
            grad, x, w, EPS, cos, sin, 1, s, dx, parts
        ),
    ),
    "gate": ([1, 1, 1], lambda s, x, y, out: kernels.gate(x, y, s, out)),
    "gate backward": (
        [1] * 5,
        lambda s, grad, x, y, dx, dy: kernels.gate_backward(grad, x, y, s, dx, dy),
    ),
}


def placed(arrays: list[np.ndarray], order: tuple[int, ...], *, gap: int) -> list[np.ndarray]:
    """Copies in one block of memory, in this order, with so many numbers between them."""
    block, start = np.zeros(sum(len(a) + gap for a in arrays), np.float32), 0
    found: dict[int, np.ndarray] = {}
    for number in order:
        end = start + len(arrays[number])
        found[number] = block[start:end]
        found[number][:] = arrays[number]
        start = end + gap
    return [found[number] for number in range(len(arrays))]


@pytest.mark.parametrize("size", [8, 16, 24, 40, 64])
@pytest.mark.parametrize("name", KERNELS)
def test_what_lies_beside_an_array_changes_no_bit(name, size):
    lengths, kernel = KERNELS[name]
    kernels.use_threads()
    random = np.random.default_rng(size)
    for _ in range(3):
        arrays = [random.standard_normal(n * size).astype(np.float32) for n in lengths]
        apart = placed(arrays, tuple(range(len(arrays))), gap=4096)
        kernel(size, *apart)
        assert any((a != b).any() for a, b in zip(arrays, apart, strict=True))
        for gap in (0, 16, 32):
            for order in islice(permutations(range(len(arrays))), 0, None, len(arrays) ** 2):
                beside = placed(arrays, order, gap=gap)
                kernel(size, *beside)
                assert all((a == b).all() for a, b in zip(apart, beside, strict=True))
