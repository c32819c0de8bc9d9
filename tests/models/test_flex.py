"""FlexAttention and attention branch by branch say the same; on a CPU, and so uncompiled."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from rolecall.learners.packing import join
from rolecall.models.attention import flex, flex_proof
from rolecall.models.attention.flex import Flex
from rolecall.models.attention.prefix_tree import PrefixTreeAttention
from rolecall.models.attention.score_rule import ScoreRule
from tests.learners.test_packing import conversations, flat
from tests.toy import CPU, alike, turn

# That it is slow uncompiled is no news here.
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["tree", "rows", "long"])
def test_flex_attention_equals_attention_branch_by_branch(heads, kind):
    turns = conversations(3, number=60)
    if kind == "long":  # several blocks, whole ones among them, in more than one bucket
        turns += [turn(episode=f"x{k}", prompt=[9] * 300, tokens=[k] * 70) for k in range(5)]
    batch = flat(turns) if kind == "rows" else join([turns[::2], turns[1::2]])
    torch.manual_seed(0)
    num_heads, num_kv_heads = heads
    query = torch.randn(num_heads, len(batch.tokens), 16)
    key, value = torch.randn(2, num_kv_heads, len(batch.tokens), 16)
    given = (batch.parent, batch.positions)
    found = Flex(*given, device=CPU).attend(0, query, key, value, scale=0.3)
    expected = PrefixTreeAttention(*given).attend(0, query, key, value, scale=0.3)
    assert alike(found, expected)


def test_blocks_that_no_id_sees_are_not_computed():
    rows = [turn(episode=f"x{k}", prompt=[k] * 200, tokens=[5] * 56) for k in range(8)]
    batch = flat(rows)
    mask = Flex(batch.parent, batch.positions, device=CPU).mask
    computed = mask.kv_num_blocks + mask.full_kv_num_blocks
    assert computed.flatten().tolist() == [1, 2] * 8
    assert np.diff(np.flatnonzero(batch.parent == -1)).tolist() == [256] * 7


def test_gradients_branch_by_branch_are_those_of_a_dense_mask():
    batch = join([conversations(5, number=30)])
    size = len(batch.tokens)
    seen = torch.zeros(size, size, dtype=torch.bool)
    for place in range(size):
        seen[place, place] = True
        if (parent := int(batch.parent[place])) >= 0:
            seen[place] |= seen[parent]
    torch.manual_seed(0)
    query, key, value = (torch.randn(h, size, 8, dtype=torch.float64) for h in (4, 2, 2))
    given = [x.requires_grad_() for x in (query, key, value)]

    def dense() -> torch.Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen, scale=0.4, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    branches = PrefixTreeAttention(batch.parent, batch.positions)
    weight = torch.randn(size, 4, 8, dtype=torch.float64)
    found = torch.autograd.grad(
        (branches.attend(0, query, key, value, scale=0.4) * weight).sum(), given
    )
    expected = torch.autograd.grad((dense() * weight).sum(), given)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-10)


def test_bfloat16_is_as_near_as_its_rounding():
    batch = join([conversations(5, number=30)])
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(h, len(batch.tokens), 8, requires_grad=True) for h in (4, 2, 2)
    )
    branches = PrefixTreeAttention(batch.parent, batch.positions)
    exact = branches.attend(0, query, key, value, scale=0.4)
    rounded = branches.attend(0, query.bfloat16(), key.bfloat16(), value.bfloat16(), scale=0.4)
    assert torch.allclose(rounded.float(), exact, atol=0.03)
    given = (query, key, value)
    expected = torch.autograd.grad(exact.sum(), given)
    for ours, theirs in zip(torch.autograd.grad(rounded.sum(), given), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=0.05 * float(theirs.abs().max()))


@pytest.fixture
def compilations(monkeypatch) -> list[int]:
    """How many numbers each compiled attention takes; nothing is compiled, only traced."""
    made: list[int] = []
    flex_proof.forget()

    def counting(traced, given):
        made.append(len(given))
        return traced.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    flex.compile_attention.cache_clear()
    yield made
    flex_proof.forget()
    flex.compile_attention.cache_clear()
    torch._dynamo.reset()


def attend(*, heads: tuple[int, int], ids: int) -> None:
    """As on a GPU."""
    batch = flat([turn(prompt=[7] * (ids - 1), tokens=[5])])
    layout = Flex(batch.parent, batch.positions, device=CPU)
    layout.compiled = True
    query, key, value = (torch.zeros(number, ids, 16) for number in (*heads, heads[1]))
    layout.attend(0, query, key, value, scale=0.3)


def test_bases_of_several_shapes_have_limits_of_their_own(compilations, monkeypatch):
    monkeypatch.setattr(flex, "MOST_SHAPES", 2)
    for heads in [(4, 2), (2, 2), (6, 3)]:
        for ids in (300, 700, 500, 700):
            attend(heads=heads, ids=ids)
    assert len(compilations) == 6, "two lengths of each of three bases"
    assert not flex_proof.unfit("training", CPU)
    attend(heads=(4, 2), ids=1500)
    assert flex_proof.unfit("training", CPU), "one more is not computed without blocks"


def test_training_and_decoding_have_limits_of_their_own(compilations):
    shape = (4, 2, 16, torch.float32)
    assert flex.compile_attention("training", *shape) is flex.compile_attention("training", *shape)
    codes = {
        id(flex.compile_attention(use, *shape)._torchdynamo_orig_callable.__code__)
        for use in ("training", "decoding")
    }
    assert len(codes) == 2, "PyTorch counts by code"


def test_rules_are_traced_whole_each_by_a_function_of_its_own(compilations):
    batch = flat([turn(prompt=[7] * 299, tokens=[5])])
    layout = Flex(batch.parent, batch.positions, device=CPU)
    layout.compiled = True
    given = [torch.zeros(heads, 300, 16) for heads in (4, 2, 2)]
    rules = [ScoreRule(8), ScoreRule(8, 2.0), ScoreRule(None, None, torch.zeros(4))]
    for rule in (*rules, *rules):
        layout.attend(0, *given, scale=0.3, rule=rule)
    assert len(compilations) == 3
