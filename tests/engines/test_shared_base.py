"""Policies that train adapters of one base: one batch for all of them, and nobody notices."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
import torch

from rolecall.config.schema import Adapter
from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.runtime.call_tree import IdleBarrier
from tests.toy import CPU, alike, language_model

PROMPTS = [[65, 66, 67], [70] * 9, [66, 90], [80, 81, 82, 83, 84]]
ENDS = tuple(range(200, 220))  # so that rows end at different times


def adapters(folder, *names: str) -> dict[str, LanguageModel]:
    base = load_model(str(folder), device=CPU, dtype=torch.float32)
    sizes = {name: Adapter(rank=2 + place, alpha=4.0) for place, name in enumerate(names)}
    models = with_adapters(base, load_tokenizer(str(folder)), sizes, seed=0)
    for place, name in enumerate(names):
        change(models[name], seed=place)
    return models


def change(model: LanguageModel, *, seed: int) -> None:
    torch.manual_seed(seed)
    for _, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)


def engine(models: dict[str, LanguageModel], **options) -> LocalEngine:
    return LocalEngine(models, barrier=IdleBarrier(), **options)


def requests(*policies: str, number: int = 5, max_tokens: int = 12) -> list[Request]:
    """`number` requests of each policy, in turn; a request's draws depend on its place only."""
    return [
        Request(
            id=f"{policy}{place}",
            policy=policy,
            prompt=np.array(PROMPTS[place % len(PROMPTS)], dtype=np.int32),
            sampling=Sampling(temperature=0.8, max_tokens=max_tokens, stop_token_ids=ENDS),
            seed=place,
            order=("t", place, (0,)),
        )
        for place in range(number)
        for policy in policies
    ]


def generate(made: LocalEngine, asked: list[Request]) -> dict[str, Completion]:
    async def all_of_them():
        said = await asyncio.gather(*map(made.generate, asked))
        return {request.id: one for request, [one] in zip(asked, said, strict=True)}

    return asyncio.run(all_of_them())


def same(one: Completion, other: Completion) -> bool:
    return one.tokens.tolist() == other.tokens.tolist() and alike(one.logprobs, other.logprobs)


def test_two_adapters_of_one_base_share_every_batch(model_folder, monkeypatch):
    made, sizes = engine(adapters(model_folder, "a", "b")), []
    [decoder] = made._distinct
    logits = decoder._logits

    def counted(rows, tokens, layout, *, keep):
        sizes.append(len(tokens))
        return logits(rows, tokens, layout, keep=keep)

    monkeypatch.setattr(decoder, "_logits", counted)
    said = generate(made, requests("a", "b"))
    longest = max(len(one.tokens) for one in said.values())
    assert len(sizes) == longest  # one prefill, then one pass for an id of every row
    assert sizes[0] == 2 * sum(len(PROMPTS[i % 4]) for i in range(5))
    assert sizes[1] == sum(len(one.tokens) > 1 for one in said.values())
    assert {name[0] for name, one in said.items() if len(one.tokens) > 1} == {"a", "b"}


@pytest.mark.parametrize(
    "options", [{}, {"max_sequences": 3}, {"max_sequences": 4, "cache_gb": 70e-6}], ids=str
)
def test_mixed_batches_sample_what_separate_engines_sample(any_model_folder, options):
    models = adapters(any_model_folder, "a", "b", "c")
    asked = requests("c", "a", "b")
    mixed = generate(engine(models, **options), asked)
    for name, model in models.items():
        alone = generate(engine({name: model}), [r for r in asked if r.policy == name])
        assert len(alone) == 5
        assert all(same(mixed[key], alone[key]) for key in alone)
    lengths = Counter(len(one.tokens) for one in mixed.values())
    assert len(lengths) > 1  # rows ended at different times, so cache rows were moved


def test_engine_logprobs_equal_those_of_each_adapter(model_folder):
    """Contract 1 in a mixed batch: `score` runs the plain path of the one adapter."""
    models = adapters(model_folder, "a", "b")
    made = engine(models)
    asked = requests("a", "b")
    for request, said in zip(asked, generate(made, asked).values(), strict=True):
        found = asyncio.run(
            made.score(request.policy, request.prompt, said.tokens, temperature=0.8)
        )
        assert np.abs(found - said.logprobs).max() <= 1e-4


def test_changing_one_adapter_changes_only_its_own_samples(model_folder):
    models = adapters(model_folder, "a", "b")
    made = engine(models)
    asked = requests("a", "b")
    before = generate(made, asked)
    change(models["b"], seed=7)
    after = generate(made, asked)
    for name in before:
        if name.startswith("a"):
            assert same(after[name], before[name])
        else:
            assert not same(after[name], before[name])


def test_each_row_records_the_version_of_its_own_policy(model_folder):
    made = engine(adapters(model_folder, "a", "b"))
    made.load("a", 3, None)
    made.load("b", 8, None)
    said = generate(made, requests("a", "b"))
    for name, one in said.items():
        assert set(one.versions.tolist()) == {3 if name.startswith("a") else 8}


def test_whole_weights_keep_a_batch_of_their_own(model_folder):
    models = adapters(model_folder, "a", "b")
    whole = language_model(model_folder)
    made = engine({**models, "whole": whole})
    assert made._schedulers["a"] is made._schedulers["b"]
    assert made._schedulers["whole"] is not made._schedulers["a"]
    said = generate(made, requests("a", "whole"))
    alone = generate(engine({"whole": whole}), requests("whole"))
    assert all(same(said[key], alone[key]) for key in alone)
    assert made._schedulers["whole"].num_read == sum(len(PROMPTS[i % 4]) for i in range(5))
