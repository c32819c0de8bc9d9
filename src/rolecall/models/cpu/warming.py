"""Compiles the loops of training in a process of its own, while a first run imports and samples.

`python -m rolecall.models.cpu.warming` trains one layer on a few numbers. numba keeps on disk what
it compiles, so the first update of the run finds it there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache

import numpy as np
import torch
from torch import Tensor

from rolecall.models.cpu import (
    bfloat16_tiles,
    kernels,
    layer_loops,
    paged_attention,
    tiled_layers,
    tiled_products,
    tiles,
    tree_attention,
)
from rolecall.models.cpu.compiled import can_be_kept, is_kept
from rolecall.models.cpu.fused_layers import RootMeanSquare
from rolecall.models.cpu.trained_layer import Begin, Finish
from rolecall.models.cpu.tree_attention import TreeAttention, make_blocks
from rolecall.runtime.cache_folder import cache_folder
from rolecall.runtime.die_with_parent import end_with_parent
from rolecall.runtime.file_locks import LockHeldError, locked_file
from rolecall.runtime.progress import Activity

TOKENS, HEADS, KV_HEADS, SIZE, WIDTH, INNER = 24, 4, 2, 8, 32, 48
EPS = 1e-6
TRAINING = (
    kernels.norm, kernels.norm_backward, kernels.slopes, layer_loops.begin,
    layer_loops.begin_backward, layer_loops.finish, layer_loops.finish_backward,
    tree_attention.lay_out, tree_attention.forward, tree_attention.backward,
)  # fmt: skip
SAMPLING = (
    bfloat16_tiles.add_pairs, bfloat16_tiles.round_to_pairs, kernels.draw, kernels.gate,
    kernels.note, kernels.rope, kernels.rope_and_cache, kernels.write, paged_attention.attend,
    paged_attention.groups, paged_attention.locate, tiled_layers.compute, tiled_products.lay_out,
    tiled_products.multiply, tiled_products.multiply_together, tiles.add_product,
)  # fmt: skip


@cache
def begin() -> subprocess.Popen[bytes] | None:
    """Start that process, if the loops have not been compiled here since they changed."""
    loop = layer_loops.finish_backward
    if torch.cuda.is_available() or is_kept(loop) or not can_be_kept(loop):
        return None
    with suppress(OSError):  # the run compiles them itself
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return None


def compiling(process: subprocess.Popen[bytes]) -> Activity:
    """Return the activity of a first run beside this process: it ends with it at the latest."""
    loops = (*TRAINING, *SAMPLING)

    def count() -> int:
        ended = process.poll() is not None
        return len(loops) if ended else sum(is_kept(loop) for loop in loops)

    return Activity("compiling loops, once on this machine", len(loops), "loops", count=count)


def compile_all() -> None:
    """Forward and backward of a layer on a prefix tree, of a norm behind it, and of log-probs."""

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=True)

    many, few, angles = HEADS * SIZE, KV_HEADS * SIZE, torch.randn(TOKENS * SIZE)
    states, weights = some(TOKENS, WIDTH), [some(size, WIDTH) for size in (many, few, few)]
    norms = some(SIZE), some(SIZE)
    parts = Begin.apply(
        states, angles, angles, SIZE, EPS, some(WIDTH), *weights, *[None] * 3, *norms
    )
    heads = (projection.view(TOKENS, -1, SIZE).transpose(0, 1) for projection in parts)
    blocks = make_blocks([(0, 8, TOKENS), (8, 16, 16), (16, TOKENS, TOKENS)])
    mixed = TreeAttention.apply(*heads, blocks, SIZE**-0.5).reshape(TOKENS, many)
    shapes = ((WIDTH, many), (INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER))
    inner = [some(*shape) for shape in shapes]
    out = Finish.apply(states, mixed, EPS, some(WIDTH), *inner, *[None] * 4)
    RootMeanSquare.apply(out, some(WIDTH), EPS).sum().backward()
    ids, temperature = torch.zeros(TOKENS, dtype=torch.long), torch.ones(TOKENS)
    logits, *given = map(kernels.flat, (some(TOKENS, WIDTH), ids, temperature))
    kernels.slopes(logits, *given, WIDTH, *(np.zeros(TOKENS, np.float32) for _ in range(2)))


def main() -> None:
    """Compile in one process; others leave it to that one."""
    if sys.platform == "linux":
        end_with_parent()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(LockHeldError), locked_file(folder / "warming.lock", wait_s=0.0):
        compile_all()


if __name__ == "__main__":
    main()
