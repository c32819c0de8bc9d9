"""Prints a digest of what each numba kernel makes of fixed numbers: `python kernel_bits.py`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from rolecall.models.cpu import (
    kernels,
    paged_attention,
    tiled_layers,
    tiled_products,
    tree_attention,
)
from rolecall.models.cpu.bfloat16_tiles import FLOAT32
from rolecall.models.cpu.tiled_products import TiledProduct
from rolecall.models.cpu.trained_layer import Begin, Finish

ROWS, WIDTH, HEADS, SIZE, VOCABULARY, PAGES = 40, 96, 4, 24, 300, 6
EPS = np.float32(1e-6)


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def main() -> None:
    random = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return random.standard_normal(int(np.prod(shape))).astype(np.float32)

    def room(number: int) -> np.ndarray:
        return np.zeros(number, np.float32)

    number = ROWS * WIDTH
    x, y, grad, weight = some(number), some(number), some(number), some(WIDTH)
    out, other = room(number), room(number)
    kernels.norm(x, weight, WIDTH, EPS, out)
    print("norm", digest(out))
    kernels.gate(x, y, WIDTH, out)
    print("gate", digest(out))
    kernels.gate_backward(grad, x, y, WIDTH, out, other)
    print("gate_backward", digest(out, other))
    parts = room(kernels.PARTS * WIDTH)
    kernels.norm_backward(grad, x, weight, WIDTH, EPS, out, parts)
    print("norm_backward", digest(out, parts))
    cos, sin, weight = some(ROWS * SIZE), some(ROWS * SIZE), some(SIZE)
    kernels.rope(x, weight, EPS, cos, sin, HEADS, SIZE, out)
    print("rope", digest(out))
    parts = room(kernels.PARTS * SIZE)
    kernels.rope_backward(grad, x, weight, EPS, cos, sin, HEADS, SIZE, out, parts)
    print("rope_backward", digest(out, parts))
    ids, logprobs, entropies = np.zeros(ROWS, np.int64), room(ROWS), room(ROWS)
    logits, ones = 4 * some(ROWS * VOCABULARY), np.ones(ROWS, np.float32)
    kernels.draw(logits, ones, random.random(ROWS), VOCABULARY, ids, logprobs)
    print("draw", digest(ids, logprobs))
    kernels.slopes(logits, ids, ones, VOCABULARY, logprobs, entropies)
    print("slopes", digest(logits, logprobs, entropies))
    keys, values = some(50 * 2 * SIZE * 16), some(50 * 2 * SIZE * 16)
    table = random.integers(0, 50, (ROWS, PAGES)).astype(np.int32)
    position, order = random.integers(0, PAGES * 16, ROWS), np.arange(ROWS)
    places = (table, order, position, order, *paged_attention.groups(table, order, position, order))
    given = (x, keys, values, *places, HEADS, 2, SIZE, np.float32(0.2))
    paged_attention.attend(*given, *paged_attention.NO_RULE, out)
    print("attend", digest(out))
    paged_attention.attend(*given, 20, np.float32(3.0), some(HEADS), out)
    print("attend under a rule", digest(out))

    def laid_out(outputs: int) -> tuple[np.ndarray, np.ndarray]:
        """A weight [outputs, WIDTH], and a bias."""
        weight = torch.from_numpy(some(outputs * WIDTH)).view(outputs, WIDTH)
        return tiled_products.laid_out(weight), some(outputs)

    wide, narrow = laid_out(WIDTH), laid_out(2 * SIZE)
    tiled_products.multiply(x, *narrow, WIDTH, 2 * SIZE, FLOAT32, True, other)
    print("multiply", digest(narrow[0], other))
    rounded = TiledProduct(torch.from_numpy(narrow[0]).view(-1, WIDTH).bfloat16(), None)
    print(
        "multiply in bfloat16", digest(rounded.times(torch.from_numpy(x).view(ROWS, WIDTH)).numpy())
    )
    weight, norms = some(WIDTH), (some(SIZE), some(SIZE))
    slot = np.arange(ROWS) * 16
    turns, sizes = (cos, sin, np.arange(ROWS)), (HEADS, 2, SIZE)
    arrays = [
        weight, *wide, *narrow, *narrow, *norms, *wide, weight, *wide, *wide, *wide,
    ]  # fmt: skip
    tiled_layers.compute(
        y, WIDTH, WIDTH, np.array([[array.ctypes.data for array in arrays]], np.uintp),
        np.array([[len(array) for array in arrays]]), FLOAT32,
        np.array([[keys.ctypes.data, values.ctypes.data]], np.uintp), len(keys), EPS, turns, slot,
        places, np.array([paged_attention.UNLIMITED]), np.array([0.2], np.float32), sizes,
        np.arange(0, ROWS, 3),
    )  # fmt: skip
    print("layers", digest(y[: 14 * WIDTH], keys, values))
    blocks = tree_attention.make_blocks([(0, 20, 40), (20, 25, 25), (25, 40, 40)])
    query, given_key, value = (some(ROWS, heads, SIZE) for heads in (HEADS, 2, 2))
    inputs = [
        torch.from_numpy(a.reshape(ROWS, -1, SIZE)).transpose(0, 1).requires_grad_()
        for a in (query, given_key, value)
    ]
    found = tree_attention.TreeAttention.apply(*inputs, blocks, 0.2)
    found.backward(torch.from_numpy(x.reshape(ROWS, HEADS, SIZE)))
    print("trees", digest(found.detach().numpy()))
    print("trees_backward", digest(*(part.grad.contiguous().numpy() for part in inputs)))

    def gradient(name: str, function: Any, *given: Any) -> None:
        inputs = [
            torch.from_numpy(a).requires_grad_() if isinstance(a, np.ndarray) else a for a in given
        ]
        outs = function.apply(*inputs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        print(name, digest(*(out.detach().numpy() for out in outs)))
        torch.autograd.backward(outs, [torch.cos(out.detach()) for out in outs])
        taken = [a.grad.numpy() for a in inputs if torch.is_tensor(a) and a.grad is not None]
        print(f"{name}_backward", digest(*taken))

    states, shapes = some(ROWS, WIDTH).reshape(ROWS, WIDTH), (HEADS * SIZE, 2 * SIZE, 2 * SIZE)
    angles = [torch.from_numpy(part) for part in (cos, sin)]
    weights = [some(size * WIDTH).reshape(size, WIDTH) for size in shapes]
    biases = [some(size) for size in shapes]
    before, inner = some(WIDTH), [some(WIDTH * WIDTH).reshape(WIDTH, WIDTH) for _ in range(4)]
    gradient(
        "begin", Begin, states, *angles, SIZE, 1e-6, before, *weights, *biases, some(SIZE),
        some(SIZE),
    )  # fmt: skip
    gradient("finish", Finish, states, states, 1e-6, before, *inner, *[None] * 4)


if __name__ == "__main__":
    main()
