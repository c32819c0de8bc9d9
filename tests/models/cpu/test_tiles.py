"""Products in tiles, and the attention made of them: each number is that of float64, whatever is
computed beside it."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

from rolecall.core.types import NO_PARENT
from rolecall.engines.local import llama_pass
from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.attention.prefix_tree import PrefixTreeAttention, _Attend
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.cpu.paged_attention import TOKENS, groups
from rolecall.models.cpu.tiles import add_product
from rolecall.models.cpu.tree_attention import BLOCK, TreeAttention
from tests.toy import alike, language_model


@pytest.mark.parametrize("columns", [8, 16, 24, 32, 40, 72])
@pytest.mark.parametrize("count", [0, 1, 2, 17])
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_of_any_size_is_added(columns, count, turned):
    """Also to the parts of larger arrays, of which the rest must stay as it is."""
    random = np.random.default_rng(0)
    for rows in range(18):
        a = random.standard_normal((count, rows + 1) if turned else (rows + 1, count + 3))
        b, out = random.standard_normal((count + 1, columns + 5)), np.ones((rows + 2, columns + 9))
        a, b, out = (x.astype(np.float32) for x in (a, b, out))
        steps = (1, rows + 1) if turned else (count + 3, 1)
        wanted = out.astype(np.float64)
        factor = a[:, :rows].T if turned else a[:rows, :count]
        wanted[:rows, :columns] += factor.astype(np.float64) @ b[:count, :columns]
        given = (
            out.ctypes.data, columns + 9, a.ctypes.data, *steps, b.ctypes.data, columns + 5,
            count, rows, columns,
        )  # fmt: skip
        add_product(*map(np.uintp, given))
        assert np.abs(out - wanted).max() <= 1e-5
        assert (out[rows:] == 1.0).all()
        assert (out[:, columns:] == 1.0).all()


def found_groups(tables, rows, positions):
    """[(tokens of a group, pages that they share)]"""
    arrays = (np.array(x) for x in (tables, rows, positions, range(len(rows))))
    first, shared = groups(*arrays)
    tokens = [list(range(a, b)) for a, b in itertools.pairwise(first)]
    return list(zip(tokens, shared.tolist(), strict=True))


def test_tokens_whose_rows_begin_alike_are_a_group():
    own, prompt = [[7, 8, n, 0] for n in range(10, 13)], 2 * PAGE
    assert found_groups(own, [0, 1, 2], [prompt + 3] * 3) == [([0, 1, 2], 2)]
    assert found_groups(own, [0, 1], [prompt - 1, prompt + 3]) == [([0, 1], 2)]
    apart = [[7, 8, 9], [4, 8, 9]]
    assert found_groups(apart, [0, 1], [40, 40]) == [([0], 3), ([1], 3)]
    little = [[7, *range(10, 15)], [7, *range(20, 25)]]  # a page of six
    assert found_groups(little, [0, 1], [95, 95]) == [([0], 6), ([1], 6)]


def test_tokens_of_one_row_share_the_pages_of_the_last_until_another_row_comes():
    """What is shared never grows again: the tokens before would read pages of another row."""
    tables = [[5, 0, 3, 1], [5, 0, 7, 2]]
    found = found_groups(tables, [0] * 3 + [1] * 3, [30, 31, 34, 32, 33, 50])
    assert found == [([0, 1, 2, 3, 4, 5], 2)]
    long = found_groups([[3, 4, 5]], [0] * 40, list(range(40)))
    assert long == [(list(range(16)), 1), (list(range(16, 32)), 2), (list(range(32, 40)), 3)]
    assert TOKENS == 16


def samples(prompts, each, longest, *, seed, size):
    """A cache full of numbers, and rows of which some read the same pages; D = size."""
    random = np.random.default_rng(seed)
    fresh = iter(random.permutation(400).tolist())
    tables = []
    for prompt in prompts:
        begin = [next(fresh) for _ in range(prompt)]
        tables += [begin + [next(fresh) for _ in range(longest - prompt)] for _ in range(each)]
    cache = Cache(layers=1, pages=400, heads=2, size=size, like=torch.zeros(1))
    for store in (*cache.keys, *cache.values):
        store.copy_(torch.randn(store.shape))
    least = np.repeat(prompts, each) * PAGE
    starts = torch.from_numpy(random.integers(least, longest * PAGE - 20))
    return cache, torch.tensor(tables, dtype=torch.int32), starts


@pytest.mark.parametrize(("seed", "size"), [(0, 24), (1, 40), (2, 64)])
def test_a_token_gets_the_same_bits_in_a_group_and_alone(seed, size):
    cache, table, starts = samples([3, 1, 0, 2], 5, 6, seed=seed, size=size)
    counts = torch.from_numpy(np.random.default_rng(seed).integers(1, 20, len(starts)))
    layout = Paged(table, starts, counts, cache=cache)
    assert len(layout.places[4]) - 1 < counts.sum(), "some are computed together"
    total = int(counts.sum())
    parts = [torch.randn(heads, total, size) for heads in (4, 2, 2)]
    together = layout.attend(0, *parts, scale=0.2)  # writes the new keys and values, too
    place = 0
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        for token in range(count):
            own = slice(place + token, place + token + 1)
            alone = Paged(
                table[row : row + 1], torch.tensor([start + token]), torch.tensor([1]), cache=cache
            )
            found = alone.attend(0, *(x[:, own] for x in parts), scale=0.2)
            assert torch.equal(found[0], together[place + token])
        place += count


def trees(seed, *, number=3, most=45):
    """parent and depth [N] of random prefix trees side by side."""
    random = np.random.default_rng(seed)
    parent, depth = [], []

    def grow(above, level):
        for _ in range(int(random.integers(1, most))):
            parent.append(above)
            depth.append(0 if above == NO_PARENT else depth[above] + 1)
            above = len(parent) - 1
        for _ in range(int(random.integers(2, 4)) if level else 0):
            grow(above, level - 1)

    for _ in range(number):
        grow(NO_PARENT, int(random.integers(0, 4)))
    return np.array(parent), np.array(depth)


def dense(parent, query, key, value, scale):
    """The same by a mask over all pairs, which autograd differentiates: [N, H, D]."""
    seen = np.eye(len(parent), dtype=bool)
    for token, above in enumerate(parent):
        if above != NO_PARENT:
            seen[token] |= seen[above]
    each = len(query) // len(key)
    key, value = (x.repeat_interleave(each, 0) for x in (key, value))
    scores = (query @ key.transpose(1, 2) * scale).masked_fill(~torch.from_numpy(seen), -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (6, 1)])
@pytest.mark.parametrize("size", [8, 24, 64])
def test_attention_over_trees_and_its_gradients_are_those_of_float64(size, heads, monkeypatch):
    parent, depth = trees(size)
    layout = PrefixTreeAttention(parent, depth)
    assert len(layout._blocks.start) > len(layout.branches) > 3, f"some are longer than {BLOCK}"
    given = [torch.randn(h, len(parent), size) for h in (heads[0], heads[1], heads[1])]
    grad, scale = torch.randn(len(parent), heads[0], size), size**-0.5
    exact = [x.double().requires_grad_() for x in given]
    wanted = dense(parent, *exact, scale)
    wanted.backward(grad.double())
    calls = []
    monkeypatch.setattr(  # the module's own class, so that what is asked is what is used
        TreeAttention, "apply", functools.partial(_counted, TreeAttention.apply, calls)
    )
    mine = [x.clone().requires_grad_() for x in given]
    found = layout.attend(0, *mine, scale=scale)
    found.backward(grad)
    assert calls == [len(parent)]
    assert alike(found.detach(), wanted.detach(), rounding=1e-6)
    for ours, theirs in zip(mine, exact, strict=True):
        assert alike(ours.grad, theirs.grad, rounding=2e-6)
    flash = [x.clone().requires_grad_() for x in given]
    _Attend.apply(*flash, layout.branches, scale).backward(grad)
    for ours, theirs in zip(flash, exact, strict=True):
        assert alike(ours.grad, theirs.grad, rounding=1e-5), "the way of other dtypes"


def test_attention_in_bfloat16_is_that_of_float32_rounded_at_the_end():
    parent, depth = trees(1)
    layout, scale = PrefixTreeAttention(parent, depth), 24**-0.5
    given = [torch.randn(h, len(parent), 24).bfloat16() for h in (4, 2, 2)]
    halves = [x.clone().requires_grad_() for x in given]
    floats = [x.float().requires_grad_() for x in given]
    grad = torch.randn(len(parent), 4, 24).bfloat16()
    found, wanted = (layout.attend(0, *x, scale=scale) for x in (halves, floats))
    assert torch.equal(found, wanted.bfloat16())
    found.backward(grad)
    wanted.backward(grad.float())
    for ours, theirs in zip(halves, floats, strict=True):
        assert torch.equal(ours.grad, theirs.grad.bfloat16())


def _counted(apply, calls, query, *others):
    calls.append(query.shape[1])
    return apply(query, *others)


def test_a_tree_gets_the_same_bits_beside_others_and_alone():
    """Gradients, too, whatever number of threads they are computed on."""
    parent, depth = trees(5, number=4)
    roots = [*np.flatnonzero(parent == NO_PARENT).tolist(), len(parent)]

    def found(start, stop):
        own = np.where(parent[start:stop] == NO_PARENT, NO_PARENT, parent[start:stop] - start)
        random = torch.Generator().manual_seed(3)
        whole = [torch.randn(h, len(parent), 16, generator=random) for h in (4, 2, 2)]
        parts = [x[:, start:stop].clone().requires_grad_() for x in whole]
        layout = PrefixTreeAttention(own, depth[start:stop])
        out = layout.attend(0, *parts, scale=0.25)
        out.backward(torch.cos(out.detach()))
        return [out.detach().transpose(0, 1), *(part.grad for part in parts)]

    together = found(0, len(parent))
    for start, stop in itertools.pairwise(roots):
        for all_of_it, own in zip(together, found(start, stop), strict=True):
            assert torch.equal(all_of_it[:, start:stop], own)


def test_a_layer_in_two_calls_computes_the_bits_of_its_parts(any_model_folder):
    model = language_model(any_model_folder)
    llama = llama_pass.plain(model)
    assert llama is not None
    assert llama.is_whole
    tokens, keep = torch.arange(50) * 7 % model.vocabulary, torch.arange(50)
    lengths = torch.tensor([20, 1, 29])
    whole = llama.logits(tokens, llama.rows(lengths), keep=keep)
    llama.__dict__["is_whole"] = False
    assert torch.equal(llama.logits(tokens, llama.rows(lengths), keep=keep), whole)
