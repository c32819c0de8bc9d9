"""Windows, soft-capping and sinks in trees, pages and FlexAttention are those of a dense mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rolecall.core.types import Batch
from rolecall.learners.packing import join
from rolecall.models.attention.flex import Flex
from rolecall.models.attention.flex_pages import FlexPages
from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.attention.layouts import Rows
from rolecall.models.attention.prefix_tree import PrefixTreeAttention, paths
from rolecall.models.attention.score_rule import ScoreRule
from tests.learners.test_packing import conversations
from tests.toy import CPU, alike, turn

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
RULES = {
    "window": ScoreRule(window=8),
    "long": ScoreRule(window=100, softcap=1.5),
    "sinks": ScoreRule(sinks=SINKS),
    "all": ScoreRule(window=20, softcap=2.0, sinks=SINKS),
}
# That FlexAttention is slow uncompiled is no news here.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def packed() -> Batch:
    """Trees of several slices and blocks, with a short row between them."""
    turns = conversations(3, number=30)
    turns += [turn(episode=f"x{k}", prompt=[9] * 300, tokens=[k] * 70) for k in range(3)]
    return join([turns[::2], turns[1::2], [turn(prompt=[1, 2], tokens=[3])]])


def seen_in(batch: Batch, window: int | None) -> torch.Tensor:
    """Along each token's own branch: [N, N]."""
    size = len(batch.tokens)
    seen = torch.zeros(size, size, dtype=torch.bool)
    for place in range(size):
        before, distance = place, 0
        while before >= 0 and (window is None or distance < window):
            seen[place, before] = True
            before, distance = int(batch.parent[before]), distance + 1
    return seen


def dense(query, key, value, *, seen, scale, rule):
    """The formula: [H, N, D] and twice [K, N, D] -> [N, H, D]."""
    groups = len(query) // len(key)
    key, value = (x.repeat_interleave(groups, 0) for x in (key, value))
    scores = scale * query @ key.transpose(1, 2)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if rule.sinks is not None:
        more = rule.sinks[:, None, None].expand(-1, scores.shape[1], 1)
        return (torch.cat([scores, more], -1).softmax(-1)[..., :-1] @ value).transpose(0, 1)
    return (scores.softmax(-1) @ value).transpose(0, 1)


def states(size: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(heads, size, 16, dtype=dtype) for heads in (4, 2, 2)]


@each_rule
def test_a_tree_gives_the_numbers_and_gradients_of_a_dense_mask(rule):
    batch = packed()
    given = [x.requires_grad_() for x in states(len(batch.tokens))]
    if rule.sinks is not None:
        rule = replace(rule, sinks=SINKS.clone().requires_grad_())
    tree = PrefixTreeAttention(batch.parent, batch.positions)
    found = tree.attend(0, *given, scale=0.3, rule=rule)
    expected = dense(*given, seen=seen_in(batch, rule.window), scale=0.3, rule=rule)
    assert torch.allclose(found, expected, atol=1e-12)
    inputs = given if rule.sinks is None else [*given, rule.sinks]
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((x * weight).sum(), inputs) for x in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, atol=1e-10)


@each_rule
def test_flex_attention_gives_the_same(rule):
    batch = packed()
    given = [x.float() for x in states(len(batch.tokens))]
    if rule.sinks is not None:
        rule = replace(rule, sinks=SINKS.float())
    found = Flex(batch.parent, batch.positions, device=CPU).attend(0, *given, scale=0.3, rule=rule)
    expected = dense(*given, seen=seen_in(batch, rule.window), scale=0.3, rule=rule)
    assert alike(found, expected)


def test_blocks_behind_a_window_are_not_computed():
    batch = join([[turn(prompt=[7] * 1000, tokens=[5] * 24)]])
    layout = Flex(batch.parent, batch.positions, device=CPU)
    mask = layout._within(130)
    computed = mask.kv_num_blocks + mask.full_kv_num_blocks
    assert computed.flatten().tolist() == [1, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # numba takes the first
@each_rule
def test_rows_read_in_pages_give_what_whole_rows_give(rule, dtype):
    """In steps of many tokens and of one, where a window has left whole pages."""
    if rule.sinks is not None:
        rule = replace(rule, sinks=SINKS.to(dtype))
    lengths, first = [70, 3, 33, 16], [50, 1, 32, 15]
    rows = [states(length, dtype) for length in lengths]
    whole = Rows(lengths, device=CPU)
    together = [torch.cat(parts, 1) for parts in zip(*rows, strict=True)]
    expected = whole.attend(0, *together, scale=0.3, rule=rule).split(lengths)
    cache = Cache(layers=1, pages=24, heads=2, size=16, like=rows[0][0])
    assert cache.runs_on_numba == (dtype == torch.float32)
    for store in (*cache.keys, *cache.values):
        store.fill_(1e30)  # what stands in a page behind a row must not count
    table = torch.randperm(20).view(4, 5).to(torch.int32)
    start = torch.zeros(4, dtype=torch.long)
    for counts in (
        first,
        [1] * 4,
        [length - n - 1 for length, n in zip(lengths, first, strict=True)],
    ):
        here = torch.tensor([r for r, count in enumerate(counts) if count])
        new = torch.tensor(counts)[here]
        layout = Paged(table[here], start[here], new, cache=cache)
        parts = [
            torch.cat([rows[r][i][:, start[r] : start[r] + counts[r]] for r in here.tolist()], 1)
            for i in range(3)
        ]
        found = layout.attend(0, *parts, scale=0.3, rule=rule).split(new.tolist())
        for r, part in zip(here.tolist(), found, strict=True):
            assert alike(part, expected[r][int(start[r]) : int(start[r]) + counts[r]])
        start += torch.tensor(counts)


@pytest.mark.parametrize("heads", [4, 6])  # of 3 for a key, one is added
@each_rule
def test_a_recorded_step_reads_pages_as_any_other(rule, heads):
    torch.manual_seed(0)
    if rule.sinks is not None:
        rule = replace(rule, sinks=torch.randn(heads, dtype=torch.float64))
    like = torch.zeros(0, dtype=torch.float64)
    cache = Cache(layers=1, pages=8, heads=2, size=16, like=like)
    cache.keys[0].normal_()
    cache.values[0].normal_()
    table = torch.tensor([[2, 0, 5], [1, 3, 4]], dtype=torch.int32)
    starts = torch.tensor([40, 3])
    query, key, value = (torch.randn(n, 2, 16, dtype=torch.float64) for n in (heads, 2, 2))
    found, expected = (
        kind(table, starts, cache=cache).attend(0, query, key, value, scale=0.3, rule=rule)
        for kind in (FlexPages, Paged)
    )
    assert torch.allclose(found, expected)


def test_rows_that_fit_the_window_are_computed_as_without_one():
    batch = packed()
    given = states(len(batch.tokens))
    tree = PrefixTreeAttention(batch.parent, batch.positions)
    longest = int(batch.positions.max()) + 1
    plain = tree.attend(0, *given, scale=0.3)
    fits = tree.attend(0, *given, scale=0.3, rule=ScoreRule(window=longest))
    assert torch.equal(plain, fits)
    assert not torch.equal(plain, tree.attend(0, *given, scale=0.3, rule=ScoreRule(longest - 1)))


def test_each_branch_is_a_path_from_its_root():
    found = paths(np.array([-1, 0, 1, 1, -1, 4], dtype=np.int32))
    assert [path.tolist() for path in found] == [[0, 1, 2], [0, 1, 3], [4, 5]]
