"""Weights that arrive while rows are in flight: the next id is already theirs, from the start."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rolecall.core.interfaces.engine import Completion, Request
from rolecall.engines.local import scheduler as decoder_file
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.language_model import LanguageModel, copies
from tests.engines.test_shared_base import adapters, engine, requests, same
from tests.toy import language_model


def moved(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Weights some updates later."""
    torch.manual_seed(5)
    return {
        name: weight + 0.1 * torch.randn_like(weight) for name, weight in model.weights().items()
    }


def generate_and_load(
    made: LocalEngine, asked: list[Request], weights: dict[str, torch.Tensor], *, policy: str
) -> dict[str, Completion]:
    """Publish the next version of a policy after each row has sampled a few ids."""
    version = made._schedulers[policy].versions[policy] + 1

    async def both():
        tasks = [asyncio.create_task(made.generate(request)) for request in asked]
        while not made._schedulers[policy].active:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        made.load(policy, version, weights)
        said = await asyncio.gather(*tasks)
        return {request.id: one for request, [one] in zip(asked, said, strict=True)}

    return asyncio.run(both())


@pytest.mark.parametrize("prefill_ids", [4096, 20])
def test_ids_after_a_publish_come_from_the_new_weights(any_model_folder, monkeypatch, prefill_ids):
    monkeypatch.setattr(decoder_file, "PREFILL_TOKENS", prefill_ids)
    learner = language_model(any_model_folder)
    made = engine(copies({"p": learner}))
    asked = requests("p", max_tokens=20)
    before = made.score("p", asked[0].prompt, np.array([65, 66], np.int32), temperature=0.8)
    old_score = asyncio.run(before)
    said = generate_and_load(made, asked, moved(learner), policy="p")
    old_engine = engine({"p": learner})
    num_new = 0
    for request in asked:
        one = said[request.id]
        assert sorted(one.versions.tolist()) == one.versions.tolist()
        new = one.versions == 1
        num_new += int(new.sum())
        for source, mine in ((made, new), (old_engine, ~new)):
            found = asyncio.run(source.score("p", request.prompt, one.tokens, temperature=0.8))
            assert np.abs(found - one.logprobs)[mine].max(initial=0.0) <= 1e-4
        assert new[-1] or one.finish == "stop"
    assert num_new > 10
    assert any(0 in one.versions and 1 in one.versions for one in said.values())
    # The learner's own tensors were only read.
    again = old_engine.score("p", asked[0].prompt, np.array([65, 66], np.int32), temperature=0.8)
    assert np.array_equal(asyncio.run(again), old_score)


def test_a_publish_leaves_the_rows_of_other_adapters_alone(model_folder):
    learners = adapters(model_folder, "a", "b")
    asked = requests("a", "b", max_tokens=20)
    made = engine(copies(learners))
    unmoved = generate_and_load(made, asked, learners["b"].weights(), policy="b")
    said = generate_and_load(made, asked, moved(learners["b"]), policy="b")
    for request in asked:
        one, before = said[request.id], unmoved[request.id]
        if request.policy == "a":
            assert same(one, before)
            assert set(one.versions.tolist()) == {0}
        else:
            found = made.score("b", request.prompt, one.tokens, temperature=0.8)
            wrong = np.abs(asyncio.run(found) - one.logprobs)[one.versions == 2]
            assert wrong.max(initial=0.0) <= 1e-4
    assert sum((one.versions == 2).sum() for one in said.values()) > 5
    assert any(not same(said[r.id], unmoved[r.id]) for r in asked if r.policy == "b")


def test_weights_that_do_not_fit_are_an_error_and_change_nothing(model_folder):
    learners = adapters(model_folder, "a", "b")
    made = engine(copies(learners))
    with pytest.raises(ValueError, match="lack"):
        made.load("a", 4, learners["b"].weights())
    assert made._schedulers["a"].versions == {"a": 0, "b": 0}
