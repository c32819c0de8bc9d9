"""Which weights decay, and that annotation shares prefixes only where it may."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rolecall.config.optimizer import Optimizer
from rolecall.learners import local
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.training.train_step import annotate
from tests.learners.test_packing import turns_of
from tests.toy import language_model


def test_norms_biases_and_embeddings_do_not_decay(model_folder):
    """With gradients of 0 a step changes nothing but what decays."""
    model = language_model(model_folder)
    head = Optimizer(lr=0.1, weight_decay=0.5)
    learner = LocalLearner(model, head, total_updates=1, head=head)
    assert learner.head is not None
    torch.nn.init.ones_(learner.head.weight)
    torch.nn.init.ones_(learner.head.bias)
    for stepper in (learner.stepper, learner.head_stepper):
        for parameter in stepper.parameters:
            parameter.grad = torch.zeros_like(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert learner.stepper.step(1.0)
    assert learner.head_stepper.step(1.0)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    kept = {n for n in before if "norm" in n or "embed" in n or n.endswith("bias")}
    assert kept
    assert moved == before.keys() - kept
    assert torch.equal(learner.head.bias, torch.ones(1))
    assert not torch.equal(learner.head.weight, torch.ones_like(learner.head.weight))


@pytest.mark.parametrize("share", [True, False])
def test_log_probs_are_annotated_with_shared_prefixes_only_where_they_are_shared(
    model_folder, monkeypatch, share
):
    learner = LocalLearner(
        language_model(model_folder), Optimizer(lr=1.0), total_updates=1, share_prefixes=share
    )
    turns = turns_of(3)
    for turn in turns:
        turn.prompt = turns[0].prompt
    asked = []

    def watched(*args, **options):
        batches = pack(*args, **options)
        asked.extend(len(batch.tokens) for batch in batches)
        return batches

    monkeypatch.setattr(local, "pack", watched)
    asyncio.run(annotate(learner, turns, {"prox_logprobs"}, budget=1000))
    apart = sum(len(turn.prompt) + len(turn.tokens) for turn in turns)
    assert (sum(asked) == apart) == (not share)
