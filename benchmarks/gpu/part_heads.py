"""Compares ways to compute log-probs of chosen tokens from the states that a head reads."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import cross_entropy

from benchmarks.gpu.checks import Figures, Machine, SkippedError, check
from rolecall.learners.frozen_head import frozen_head_logprobs
from rolecall.learners.logprobs import LARGEST_LOGITS, chunked_logprobs, logits_to_logprobs
from rolecall.models.exact_head import ExactHead

WIDTH, VOCABULARY, TOKENS = 1024, 151_936, 4096  # the head of Qwen3-0.6B
SMALL = (32, 300, 40)
REPEATS = 4


@check
def chunks_equal_the_whole(machine: Machine) -> Figures:
    """Log-probs, entropies and gradients in chunks are those of all logits at once."""
    head, states, ids, temperature = _draw(machine, torch.float32, sizes=(64, 5000, 300))
    weight = torch.randn(300).to(machine.device)
    found = []
    for chunked in (False, True):
        leaf = states.detach().clone().requires_grad_()
        if chunked:
            sampled, entropy = chunked_logprobs(
                head, leaf, ids, temperature, entropy="gradient", rows=70
            )
        else:
            sampled, entropy = logits_to_logprobs(head(leaf), ids, temperature, entropy="gradient")
        assert entropy is not None
        [gradient] = torch.autograd.grad((sampled * weight).sum() + entropy.sum(), [leaf])
        found.append((sampled.detach(), entropy.detach(), gradient))
    figures = {
        name: float((ours - theirs).abs().max().cpu())
        for name, ours, theirs in zip(("logprobs", "entropies", "gradient"), *found, strict=True)
    }
    assert max(figures.values()) <= 1e-4, figures
    return figures


@check
def a_frozen_head_has_the_gradient_of_autograd(machine: Machine) -> Figures:
    """The gradient that is computed with the log-probs is that of a backward pass."""
    head, states, ids, temperature = _draw(machine, torch.float32, sizes=(64, 5000, 300))
    head.requires_grad_(False)
    weight = torch.randn(300).to(machine.device)
    found = []
    for frozen in (False, True):
        leaf = states.detach().clone().requires_grad_()
        if frozen:
            sampled, _ = frozen_head_logprobs(
                head, leaf, ids, temperature, entropy=None, rows=70, vocabulary=5000
            )
        else:
            sampled, _ = logits_to_logprobs(head(leaf), ids, temperature, entropy=None)
        [gradient] = torch.autograd.grad((sampled * weight).sum(), [leaf])
        found.append((sampled.detach(), gradient))
    figures = {
        name: float((ours - theirs).abs().max().cpu())
        for name, ours, theirs in zip(("logprobs", "gradient"), *found, strict=True)
    }
    assert max(figures.values()) <= 1e-4, figures
    return figures


@check
def bfloat16_heads_round_once(machine: Machine) -> Figures:
    """A head in bfloat16 says what float64 says of the same weights, to float32's rounding."""
    head, states, ids, temperature = _draw(machine, torch.bfloat16)
    rows = slice(0, 64)
    with torch.no_grad():
        sampled, _ = logits_to_logprobs(
            head(states[rows]), ids[rows], temperature[rows], entropy=None
        )
        exact = states[rows].double().cpu() @ head.weight.double().cpu().T
        expected, _ = logits_to_logprobs(
            exact, ids[rows].cpu(), temperature[rows].cpu(), entropy=None
        )
    gap = float((sampled.double().cpu() - expected).abs().max())
    assert gap <= 1e-3, gap
    return {"largest gap nats": gap}


@check
def training_head(machine: Machine) -> Figures:
    """Measure our chunks beside Liger's fused Triton kernel, on the head of Qwen3-0.6B."""
    head, states, ids, temperature = _draw(machine, torch.bfloat16)
    rows = LARGEST_LOGITS // head.weight.shape[0]

    def ours(leaf: Tensor) -> Tensor:
        sampled, _ = chunked_logprobs(head, leaf, ids, temperature, entropy=None, rows=rows)
        return -sampled.sum()

    def whole(leaf: Tensor) -> Tensor:
        return cross_entropy((leaf @ head.weight.T).float(), ids, reduction="sum")

    figures = _measure(machine, "ours", ours, states, head)
    figures |= _measure(machine, "whole", whole, states, head)
    head.requires_grad_(False)
    figures |= _measure(
        machine, "frozen",
        lambda leaf: -frozen_head_logprobs(
            head, leaf, ids, temperature, entropy=None, rows=rows, vocabulary=head.out_features
        )[0].sum(),
        states, head,
    )  # fmt: skip
    head.requires_grad_(True)
    if not machine.is_dry:
        fused = _import_liger()
        figures |= _measure(
            machine, "liger", lambda leaf: fused(head.weight, leaf, ids), states, head
        )
    return figures


@check
def liger_says_the_same(machine: Machine) -> Figures:
    """The loss of Liger's kernel over bfloat16 is ours to bfloat16's rounding."""
    machine.require_gpu("Liger's kernels need Triton and a GPU")
    head, states, ids, temperature = _draw(machine, torch.bfloat16)
    rows = LARGEST_LOGITS // head.weight.shape[0]
    with torch.no_grad():
        sampled, _ = chunked_logprobs(head, states, ids, temperature, entropy=None, rows=rows)
        ours = float(-sampled.mean())
        theirs = float(_import_liger()(head.weight, states, ids)) / len(ids)
    assert abs(ours - theirs) <= 0.01 * abs(ours), (ours, theirs)
    return {"ours": ours, "liger": theirs}


def _import_liger() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Raises SkippedError where the package is missing."""
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError as error:
        raise SkippedError(f"liger-kernel is not installed ({error})") from error
    return LigerFusedLinearCrossEntropyLoss(reduction="sum")


def _draw(
    machine: Machine, dtype: torch.dtype, *, sizes: tuple[int, int, int] | None = None
) -> tuple[Linear, Tensor, Tensor, Tensor]:
    """Return a head, states [M, W], tokens [M] and temperatures [M]."""
    width, vocabulary, tokens = sizes or (SMALL if machine.is_dry else (WIDTH, VOCABULARY, TOKENS))
    torch.manual_seed(0)
    head = Linear(width, vocabulary, bias=False)
    head.weight.data.normal_(std=width**-0.5 * 2)
    head = head.to(machine.device, dtype)
    if dtype != torch.float32:
        head.__class__ = ExactHead
    states = torch.randn(tokens, width).to(machine.device, dtype)
    ids = torch.randint(vocabulary, (tokens,)).to(machine.device)
    return head, states, ids, torch.ones(tokens).to(machine.device)


def _measure(
    machine: Machine, name: str, loss: Callable[[Tensor], Tensor], states: Tensor, head: Linear
) -> Figures:
    """Return milliseconds of the quickest forward and backward pass, and GB beyond its inputs."""
    seconds, memory = [], 0.0
    leaves = [p for p in head.parameters() if p.requires_grad]
    for _ in range(REPEATS):
        leaf = states.detach().clone().requires_grad_()
        machine.synchronize()
        if not machine.is_dry:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = time.perf_counter()
        gradients = torch.autograd.grad(loss(leaf), [leaf, *leaves])
        machine.synchronize()
        seconds.append(time.perf_counter() - started)
        if not machine.is_dry:
            memory = (torch.cuda.max_memory_allocated() - before) / 1e9
        del gradients
    return {f"{name} ms": 1000 * min(seconds), f"{name} GB": memory}
