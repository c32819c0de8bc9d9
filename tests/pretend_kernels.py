"""Stand-ins for what needs a real GPU: FlexAttention's kernels and recorded CUDA graphs.

`tests/pretend_gpu.py` stands in for the device itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rolecall.engines.local import cuda_graphs
from rolecall.models.attention import flex, flex_pages, flex_proof
from tests.pretend_gpu import PretendGpu


@contextmanager
def pretend_kernels() -> Iterator[None]:
    """Inside, attention needs no kernels of a GPU, and steps are recorded without CUDA graphs."""
    with (
        mock.patch.object(cuda_graphs._Step, "record", record),
        attention_by(attend_by_mask, attend_under_rule),
    ):
        Replayed.replays = 0
        yield


@contextmanager
def attention_by(plain: Any, under_rule: Any) -> Iterator[None]:
    """Inside, these functions compute what FlexAttention's kernels would."""

    def compiled(*_: Any, under_rule: bool = False) -> Any:
        return ruled if under_rule else plain

    ruled = under_rule
    flex_proof.forget()
    with (
        mock.patch.object(flex, "compile_attention", compiled),
        mock.patch.object(flex_pages, "compile_attention", compiled),
    ):
        yield
    flex_proof.forget()


def attend_by_mask(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, scale: float, enable_gqa: bool
) -> Tensor:
    """Compute FlexAttention by the mask over the blocks that it lists."""
    if block_mask.full_kv_indices is not None:
        mask = _mask_of_blocks(block_mask, query.shape[2], key.shape[2], query.device)
    else:  # each row of the batch has its own pages
        there, mask = _mask_of_pages(block_mask, query.device)
        key, value = (x[0][:, there].transpose(0, 1) for x in (key, value))
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )


def attend_under_rule(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: float,
    softcap: float | None, sums: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the same with soft-capping, and the logarithms of the softmaxes' sums."""
    if block_mask.full_kv_indices is not None:
        mask = _mask_of_blocks(block_mask, query.shape[2], key.shape[2], query.device)
    else:
        there, mask = _mask_of_pages(block_mask, query.device)
        key, value = (x[0][:, there].transpose(0, 1) for x in (key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = scale * query @ key.transpose(2, 3)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _mask_of_blocks(block_mask: Any, queries: int, keys: int, device: torch.device) -> Tensor:
    size = block_mask.BLOCK_SIZE[1]
    mask = torch.zeros(queries, keys, dtype=torch.bool, device=device)
    for kind in ("kv", "full_kv"):
        blocks = getattr(block_mask, f"{kind}_indices")[0, 0].tolist()
        counts = getattr(block_mask, f"{kind}_num_blocks")[0, 0].tolist()
        for block, (listed, count) in enumerate(zip(blocks, counts, strict=True)):
            here = torch.arange(block * size, (block + 1) * size, device=device)[:, None]
            for other in listed[:count]:
                there = torch.arange(other * size, (other + 1) * size, device=device)
                mask[here, there] = block_mask.mask_mod(0, 0, here, there)
                assert kind == "kv" or bool(mask[here, there].all()), "a block that is not whole"
    return mask


def _mask_of_pages(block_mask: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the positions that each row lists [R, P * PAGE], and whether it sees them."""
    size, blocks = block_mask.BLOCK_SIZE[1], block_mask.kv_indices[:, 0, 0]
    within, row = (torch.arange(number, device=device) for number in (size, len(blocks)))
    there = (blocks[:, :, None] * size + within).flatten(1).long()
    mask = block_mask.mask_mod(row[:, None], 0, 0, there)
    number = torch.arange(there.shape[1], device=device)
    mask &= number < block_mask.kv_num_blocks[:, 0] * size
    return there, mask[:, None, None]


class Replayed:
    """The place of a CUDA graph: it runs the step again, which may not wait for the device."""

    replays = recorded = 0

    def __init__(self, step: cuda_graphs._Step) -> None:
        self.step = step

    def replay(self) -> None:
        Replayed.replays += 1
        waited = PretendGpu.waited
        self.step.logits.copy_(self.step.forward())
        assert PretendGpu.waited == waited, "a recorded step may not wait for the device"


def record(step: cuda_graphs._Step, pool: Any) -> None:
    """Stand in for `_Step.record`."""
    Replayed.recorded += 1
    step.logits = step.forward()
    step.graph = Replayed(step)  # type: ignore[assignment]
