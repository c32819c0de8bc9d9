"""Weights that compute in bfloat16 train as those in float32 do: masters, moments and sums do."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.learners.local import LocalLearner
from rolecall.learners.optimizer import Stepper
from rolecall.learners.packing import join, pack
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from tests.learners.test_packing import turns_of
from tests.toy import CPU, language_model

STEPS, LR = 200, 1e-6
ROUNDING = 2.0**-8  # largest relative error of a number in bfloat16


def half(folder) -> LanguageModel:
    model = load_model(str(folder), device=CPU, dtype=torch.bfloat16)
    return LanguageModel(model, load_tokenizer(str(folder)))


def learner_of(folder, lr: float = 1e-3) -> LocalLearner:
    return LocalLearner(half(folder), Optimizer(lr=lr), total_updates=10)


def update(learner, batches) -> None:
    asyncio.run(learner.update([batches], DrMas(), per_agent=False))


def test_200_small_steps_move_bfloat16_weights_as_far_as_float32_ones():
    before = torch.linspace(0.01, 0.03, 1000).to(torch.bfloat16)
    steppers = []
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(before.clone().to(dtype))
        stepper = Stepper([weight], Optimizer(lr=LR), total=STEPS)
        for _ in range(STEPS):
            (weight.float().sum() * 1e-3).backward()
            assert stepper.step(1.0)
        steppers.append(stepper)
    exact, half_exact = (stepper.masters[0].detach() for stepper in steppers)
    assert float((before - exact).mean()) == pytest.approx(STEPS * LR, rel=1e-2)
    assert torch.equal(half_exact, exact)
    assert torch.equal(steppers[1].parameters[0], exact.to(torch.bfloat16))
    assert bool((steppers[1].parameters[0] < before).all()), "each of them moved"


def test_gradients_of_micro_batches_are_summed_in_float32(model_folder):
    """A thousand small gradients after a large one: in bfloat16 they would change nothing."""
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    stepper = Stepper([weight], Optimizer(lr=LR), total=1)
    weight.sum().backward()
    for _ in range(1000):
        (weight.sum() * 2.0**-10).backward()
    assert weight.grad is None, "one gradient is held, not two"
    assert torch.equal(stepper.masters[0].grad, torch.full((4,), 1.0 + 1000 * 2.0**-10))
    turns = turns_of(8)
    found = []
    for budget in (10_000, 60):
        learner = learner_of(model_folder)
        for batch in pack(turns, budget=budget, share=False):
            DrMas().loss(batch, learner.forward(batch)).total.backward()
        found.append(torch.cat([p.grad.flatten() for p in learner.stepper.masters]))
    apart = (found[0] - found[1]).norm() / found[0].norm()
    assert apart < 4 * ROUNDING, "each micro-batch's own gradient is rounded once"


def test_logits_are_not_rounded(model_folder):
    """At 20 the numbers of bfloat16 are .125 apart."""
    model = half(model_folder)
    states = 30 * torch.randn(5, model.hidden_size, generator=torch.manual_seed(0))
    states = states.bfloat16()
    weight = model.model.get_output_embeddings().weight.detach()
    logits = model.head(states).detach()
    exact = states.double() @ weight.double().T
    assert logits.dtype == torch.float32
    assert float(exact.abs().max()) > 20
    assert (logits - exact).abs().max() < 1e-5 * exact.abs().max()


def test_saved_masters_go_on_bit_for_bit_and_the_folder_is_a_model(model_folder, tmp_path):
    from transformers import AutoModelForCausalLM

    batches = [join([[t] for t in turns_of(5, seed=seed)]) for seed in range(4)]
    straight, first = learner_of(model_folder, 1e-5), learner_of(model_folder, 1e-5)
    for batch in batches:
        update(straight, [batch])
    for batch in batches[:2]:
        update(first, [batch])
    first.save(tmp_path)
    second = learner_of(model_folder, 1e-5)
    second.load(tmp_path)
    alone = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, weight in alone.named_parameters():
        assert torch.equal(weight, dict(first.model.named_parameters())[name]), name
    for batch in batches[2:]:
        update(second, [batch])
    for mine, theirs in zip(second.stepper.masters, straight.stepper.masters, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(second.parameters, straight.parameters, strict=True):
        assert mine.dtype == torch.bfloat16
        assert torch.equal(mine, theirs)


def test_adapters_stay_in_float32(model_folder):
    base = load_model(str(model_folder), device=CPU, dtype=torch.bfloat16)
    sizes = {name: Adapter(rank=4) for name in ("a", "b")}
    for model in with_adapters(base, load_tokenizer(str(model_folder)), sizes, seed=0).values():
        learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
        assert {p.dtype for p in learner.parameters} == {torch.float32}
        assert learner.stepper.masters == learner.parameters


def test_weights_in_float32_are_their_own_masters(model_folder):
    learner = LocalLearner(language_model(model_folder), Optimizer(lr=1e-3), total_updates=1)
    assert all(a is b for a, b in zip(learner.stepper.masters, learner.parameters, strict=True))
