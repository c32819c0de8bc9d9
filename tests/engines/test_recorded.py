"""Padded steps over FlexAttention's pages say what the plain pass says; unrecorded, on a CPU."""

from __future__ import annotations

import asyncio
import weakref

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from rolecall.config.schema import Adapter
from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.engines.local.cuda_graphs import Recorded
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.attention import flex_pages
from rolecall.models.attention.flex import pad_size
from rolecall.models.attention.flex_pages import FlexPages
from rolecall.models.attention.kv_cache import Cache, Paged
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.language_model import LanguageModel, mixed_logits
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.runtime.call_tree import IdleBarrier
from tests.toy import CPU

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:flex_attention called without"),
]


def double(folder) -> LanguageModel:
    """In float64, which numba's loops do not take."""
    model = load_model(str(folder), device=CPU, dtype=torch.float64)
    return LanguageModel(model, load_tokenizer(str(folder)))


@pytest.mark.parametrize("rows", [1, 8, 11])
@torch.no_grad()
def test_padded_steps_say_what_the_plain_pass_says(any_model_folder, rows):
    model = double(any_model_folder)
    cache = Cache(
        layers=model.num_layers, pages=80, heads=model.num_kv_heads, size=model.head_size,
        like=next(model.model.parameters()),
    )  # fmt: skip
    random = np.random.default_rng(rows)
    counts = torch.from_numpy(random.integers(1, 5 * PAGE, rows))
    table = torch.from_numpy(random.permutation(80)[: rows * 6].reshape(rows, 6).astype(np.int32))
    table[rows // 2 :, :1] = table[rows // 2, 0]  # some begin with the same page
    counts[rows // 2 :] += PAGE
    ids = torch.from_numpy(random.integers(10, 200, int(counts.sum())))
    starts = torch.zeros(rows, dtype=torch.long)
    first = counts.cumsum(0) - counts
    for row in range(rows // 2 + 1, rows):  # and then with the same ids
        source = int(first[rows // 2])
        ids[first[row] : first[row] + PAGE] = ids[source : source + PAGE]
    read = Paged(table, starts, counts, cache=cache)
    model.logits(ids, read.position, layout=read, keep=counts.cumsum(0) - 1)
    recorded = Recorded([model], cache, width=9)
    for step in range(PAGE // 4):
        newest = torch.from_numpy(random.integers(10, 200, rows))
        plain = Paged(table, counts + step, cache=cache)
        expected = model.logits(newest, plain.position, layout=plain, keep=plain.row)
        for layer in range(model.num_layers):  # the step must write them itself
            cache.keys[layer][plain.slot] = 1e30
            cache.values[layer][plain.slot] = 1e30
        found = recorded.logits(newest, counts + step, table, policy=starts)
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("heads", "asked"), [((4, 2), 4), ((6, 2), 8), ((7, 1), 8), ((3, 3), 3)])
def test_the_kernel_is_asked_for_1_2_4_heads_of_each_key_head(heads, asked, monkeypatch):
    """The one that decodes takes no other numbers; compiling it for 3 or 7 fails on a GPU."""
    (num_heads, num_kv), seen = heads, []

    def spied(query, *given, **options):
        seen.append(query.shape[1])
        return flex_attention(query, *given, **options)

    monkeypatch.setattr(flex_pages, "flex_attention", spied)
    like = torch.zeros(0, dtype=torch.float64)
    cache = Cache(layers=1, pages=4, heads=num_kv, size=8, like=like)
    table, starts = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32), torch.tensor([20, 3])
    random = torch.Generator().manual_seed(0)
    draws = {"dtype": torch.float64, "generator": random}
    cache.keys[0].normal_(generator=random)
    cache.values[0].normal_(generator=random)
    query = torch.randn(num_heads, 2, 8, **draws)
    key, value = torch.randn(2, num_kv, 2, 8, **draws)
    found = FlexPages(table, starts, cache=cache).attend(0, query, key, value, scale=0.3)
    expected = Paged(table, starts, cache=cache).attend(0, query, key, value, scale=0.3)
    assert torch.allclose(found, expected)
    assert seen == [asked]


def sampled(made: LocalEngine) -> list[Completion]:
    prompt = np.arange(20, 70, dtype=np.int32)

    async def one(number: int) -> list[Completion]:
        request = Request(
            f"r{number}", "p", prompt[: 30 + number], Sampling(max_tokens=3 + 5 * number),
            number, (f"r{number}", 0, (0,)), n=3,
        )  # fmt: skip
        return await made.generate(request)

    async def main() -> list[Completion]:
        groups = await asyncio.gather(*(one(number) for number in range(6)))
        return [done for group in groups for done in group]

    return asyncio.run(main())


@pytest.mark.evidence
def test_an_engine_that_replays_steps_samples_what_another_one_samples(model_folder):
    plain, replaying = (
        LocalEngine({"p": double(model_folder)}, barrier=IdleBarrier(), cache_gb=0.01)
        for _ in range(2)
    )
    [decoder] = replaying._distinct
    assert not decoder.records, "a CPU has nothing to record"
    decoder.records = True
    for ours, theirs in zip(sampled(replaying), sampled(plain), strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
    assert sorted(decoder._recorded._steps) == [8, 12, 16, 24], "all numbers of rows in few sizes"


@pytest.mark.parametrize(
    ("records", "free", "kept"), [(False, False, False), (True, True, False), (True, False, True)]
)
def test_sleep_gives_the_memory_back_that_no_recorded_step_reads(model_folder, records, free, kept):
    made = LocalEngine(
        {"p": double(model_folder)}, barrier=IdleBarrier(), cache_gb=0.01, free_on_update=free
    )
    [decoder] = made._distinct
    decoder.records = records
    prompt, sampling = np.arange(20, 70, dtype=np.int32), Sampling(max_tokens=3)

    def ask() -> None:
        asyncio.run(made.generate(Request("r", "p", prompt, sampling, 0, ("r", 0, (0,)))))

    ask()
    cache = weakref.ref(decoder.allocator.cache)
    asyncio.run(made.reset_prefix_cache())
    assert cache() is decoder.allocator.cache, "nothing is freed to forget"
    assert (decoder._recorded is not None) == records
    asyncio.run(made.sleep(weights=False))
    assert (cache() is not None) == kept
    assert (decoder._recorded is not None) == kept
    read = decoder.num_read
    ask()
    assert decoder.num_read - read == len(prompt), "and nothing is found again"


@torch.no_grad()
def test_a_recorded_step_takes_rows_of_several_adapters_and_of_other_ones_next_time(model_folder):
    base = load_model(str(model_folder), device=CPU, dtype=torch.float64)
    sizes = {name: Adapter(rank=2 + place, alpha=4.0) for place, name in enumerate("abc")}
    models = list(with_adapters(base, load_tokenizer(str(model_folder)), sizes, seed=0).values())
    for model in models:
        for _, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    cache = Cache(
        layers=models[0].num_layers, pages=9, heads=models[0].num_kv_heads,
        size=models[0].head_size, like=next(base.model.parameters()),
    )  # fmt: skip
    recorded = Recorded(models, cache, width=2)
    table = torch.arange(4, dtype=torch.int32)[:, None]
    starts, newest = torch.zeros(4, dtype=torch.long), torch.tensor([65, 70, 80, 90])
    for owners in ([0, 1, 2, 1], [2, 2, 2, 2], [1, 0, 0, 2]):
        rows = [models[owner] for owner in owners]
        plain = Paged(table, starts, cache=cache)
        expected = mixed_logits(
            rows, newest, plain.position, counts=plain.counts, layout=plain, keep=plain.row
        )
        found = recorded.logits(newest, starts, table, policy=torch.tensor(owners))
        assert torch.allclose(found, expected, atol=1e-6)
    assert len(recorded._steps) == 1


def test_a_prompt_that_comes_later_is_read_apart_from_the_rows_in_flight(model_folder, monkeypatch):
    """They stay in the recorded step, and nobody gathers what they have read."""
    gathered, replayed = [], []
    part, logits = Paged._part, Recorded.logits

    def counted_part(layout, rows):
        made = part(layout, rows)
        gathered.append(made.slots.numel())
        return made

    def counted_logits(recorded, tokens, *given, **options):
        replayed.append(len(tokens))
        return logits(recorded, tokens, *given, **options)

    async def two(made: LocalEngine) -> list[Completion]:
        [decoder] = made._distinct
        prompt = np.arange(20, 220, dtype=np.int32)
        asked = [
            Request(name, "p", ids, Sampling(max_tokens=6), place, (name, 0, (0,)))
            for place, (name, ids) in enumerate({"long": prompt, "short": prompt[:9]}.items())
        ]
        first = asyncio.create_task(made.generate(asked[0]))
        while not decoder.active:
            await asyncio.sleep(0)
        return [*await made.generate(asked[1]), *await first]

    plain, replaying = (
        LocalEngine({"p": double(model_folder)}, barrier=IdleBarrier(), cache_gb=0.01)
        for _ in range(2)
    )
    expected = asyncio.run(two(plain))
    replaying._distinct[0].records = True
    monkeypatch.setattr(Paged, "_part", counted_part)
    monkeypatch.setattr(Recorded, "logits", counted_logits)
    found = asyncio.run(two(replaying))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-6)
    assert gathered == [13 * PAGE, PAGE], "of each prompt its own pages, once"
    assert sum(replayed) == sum(len(one.tokens) - 1 for one in found)


def test_sizes_are_few_and_never_a_third_too_large():
    sizes = [pad_size(size, least=8) for size in range(1, 1025)]
    assert all(size <= found for size, found in zip(range(1, 1025), sizes, strict=True))
    assert all(2 * found < 3 * size for size, found in zip(range(9, 1025), sizes[8:], strict=True))
    assert len(set(sizes)) == 15
