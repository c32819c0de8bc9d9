"""Compares FlexAttention with plain attention, in training and in decoding."""

from __future__ import annotations

import time
from functools import partial
from itertools import product

import torch
from torch import Tensor

from benchmarks.gpu.checks import Figures, Machine, add_checks, check
from benchmarks.gpu.models import make_turns
from rolecall.learners.packing import join
from rolecall.models.attention.flex import Flex
from rolecall.models.attention.flex_proof import bound, unfit, was_tried
from rolecall.models.attention.score_rule import ScoreRule

HEADS = {"qwen3": (16, 8, 128), "llama": (32, 8, 64), "odd": (6, 2, 64), "seven": (14, 2, 64)}
RULES = {
    "plain": None,
    "window": ScoreRule(window=100),
    "softcap": ScoreRule(window=None, softcap=30.0),
    "sinks": ScoreRule(window=64, softcap=None, sinks=torch.zeros(0)),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REPEATS = 5


def compare(machine: Machine, *, heads: str, dtype: str, rule: str) -> Figures:
    """Results and gradients over trees of several blocks are those of plain attention."""
    tokens = (20, 30) if machine.is_dry else (300, 400)
    layout, given = _prepare(machine, heads=heads, dtype=DTYPES[dtype], tokens=tokens)
    score_rule = _fill_sinks(RULES[rule], given[0])
    weight = torch.randn_like(given[0].transpose(0, 1))
    flex = layout.attend(0, *given, scale=0.1, rule=score_rule)
    plain = layout._scores.attend(*given, scale=0.1, rule=score_rule or ScoreRule())
    gradients = [torch.autograd.grad((out * weight).sum(), given) for out in (flex, plain)]
    reason = unfit("training", machine.device)
    assert not reason, reason
    assert was_tried("training", machine.device)
    figures = {"difference": _difference(flex, plain)}
    for name, ours, theirs in zip("qkv", *gradients, strict=True):
        figures[f"d{name}"] = _difference(ours, theirs)
    largest = bound(DTYPES[dtype])
    assert max(figures.values()) <= largest, f"{figures} exceed {largest:.2g}"
    return figures


# In float32 one shape of heads is enough: the kernels differ by dtype, heads and rule.
add_checks(
    "attention",
    {
        f"training_{heads}_{rule}_{dtype}": partial(compare, heads=heads, dtype=dtype, rule=rule)
        for heads, rule, dtype in product(HEADS, RULES, DTYPES)
        if dtype == "bfloat16" or heads == "qwen3"
        if heads in ("qwen3", "llama") or rule == "plain"
    },
)


@check
def training_is_faster_than_plain(machine: Machine) -> Figures:
    """Measure a forward and backward pass over 8,192 tokens in bfloat16, a tree of 16 branches."""
    tokens = (20, 30) if machine.is_dry else (512, 480)
    layout, given = _prepare(machine, heads="qwen3", dtype=torch.bfloat16, tokens=tokens)
    flex = _time(machine, lambda: layout.attend(0, *given, scale=0.1), given)
    plain = _time(
        machine, lambda: layout._scores.attend(*given, scale=0.1, rule=ScoreRule()), given
    )
    figures = {"flex ms": flex, "plain ms": plain, "ratio": plain / flex}
    assert machine.is_dry or plain > flex, figures
    return figures


def _prepare(
    machine: Machine, *, heads: str, dtype: torch.dtype, tokens: tuple[int, int]
) -> tuple[Flex, list[Tensor]]:
    prompt, sampled = tokens
    turns = make_turns(16, prompt=prompt, tokens=sampled, vocabulary=300, shared=8)
    batch = join([turns[:8], turns[8:]])
    layout = Flex(batch.parent, batch.positions, device=machine.device)
    torch.manual_seed(0)
    num_heads, num_kv, width = HEADS[heads]
    shapes = [(n, len(batch.tokens), width) for n in (num_heads, num_kv, num_kv)]
    drawn = [torch.randn(*shape).to(machine.device, dtype) for shape in shapes]
    return layout, [x.requires_grad_() for x in drawn]


def _fill_sinks(rule: ScoreRule | None, query: Tensor) -> ScoreRule | None:
    if rule is None or rule.sinks is None:
        return rule
    sinks = torch.linspace(-1, 1, len(query)).to(query.device, query.dtype)
    return ScoreRule(rule.window, rule.softcap, sinks)


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference as a share of the largest number."""
    difference = (ours.detach().double() - theirs.detach().double()).abs().max()
    return float((difference / theirs.detach().double().abs().max()).cpu())


def _time(machine: Machine, attend, given: list[Tensor]) -> float:
    """Return the milliseconds of the quickest forward and backward pass."""
    seconds = []
    for _ in range(REPEATS):
        machine.synchronize()
        started = time.perf_counter()
        torch.autograd.grad(attend().sum(), given)
        machine.synchronize()
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds)
