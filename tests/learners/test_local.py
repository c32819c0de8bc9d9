"""One optimizer step: its gradient, its norms, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.ppo import Ppo
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.core.interfaces.learner import DivergedError
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import join, pack
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from tests.learners.test_packing import gradient, turns_of
from tests.toy import CPU, alike, language_model


def learner_of(folder, **options) -> LocalLearner:
    return LocalLearner(
        language_model(folder), Optimizer(lr=options.pop("lr", 1e-3), **options), total_updates=10
    )


def flat(turns):
    """Every turn a tree of its own."""
    return join([[turn] for turn in turns])


def update(learner, batches, *, per_agent=True):
    [done] = asyncio.run(learner.update([batches], DrMas(), per_agent=per_agent))
    return done


def weights(learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.parameters])


def test_gradient_norms_per_agent_are_exact_though_they_share_a_policy(model_folder):
    turns = turns_of(10, agents=("solver", "verifier"))
    done = update(learner_of(model_folder), pack(turns, budget=100, skip_zero=True))
    count = sum(len(t.tokens) for t in turns)
    for name in ("solver", "verifier"):
        mine = [t for t in turns if t.agent == name]
        _, alone = gradient(model_folder, [flat(mine)], DrMas())
        share = sum(len(t.tokens) for t in mine) / count
        assert done.agent_grad_norms[name] == pytest.approx(float(alone.norm()) * share, rel=1e-4)
    _, whole = gradient(model_folder, [flat(turns)], DrMas())
    assert done.grad_norm == pytest.approx(float(whole.norm()), rel=1e-4)


def test_measuring_agents_apart_holds_two_gradients_however_many_agents_share(model_folder):
    """Counted where the last agent's backward pass ends: tensors as large as the embedding."""
    agents = ("a", "b", "c", "d")
    batches = pack(turns_of(16, agents=agents), budget=100, skip_zero=True)
    assert {batch.agent for batch in batches} == set(agents)
    learner = learner_of(model_folder)
    largest = max(learner.parameters, key=lambda p: p.numel())
    alike = [p for p in learner.parameters if p.shape == largest.shape]
    held = []

    def tensors() -> list[torch.Tensor]:
        found = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
        return [x for x in found if x.shape == largest.shape]

    own = {x.data_ptr() for x in tensors()}  # and those of earlier tests

    def count(_: torch.Tensor) -> None:
        current = [p.grad for p in alike if p.grad is not None]  # so that Python sees them
        alive = [*current, *tensors()]
        held.append(len({x.data_ptr() for x in alive} - own) / len(alike))

    hook = largest.register_post_accumulate_grad_hook(count)
    update(learner, batches, per_agent=True)
    hook.remove()
    assert len(held) >= len(agents)
    assert max(held) == 2


def test_measuring_agents_apart_changes_no_weight(model_folder):
    turns = turns_of(10, agents=("solver", "verifier"))
    batches = pack(turns, budget=100, skip_zero=True)
    apart, together = learner_of(model_folder), learner_of(model_folder)
    update(apart, batches, per_agent=True)
    done = update(together, batches, per_agent=False)
    assert done.agent_grad_norms == {}
    assert torch.allclose(weights(apart), weights(together), atol=1e-7)


def test_a_large_gradient_is_clipped_to_its_norm(model_folder):
    """With plain SGD-like moments the first Adam step hides the scale, so look at the gradient."""
    learner = learner_of(model_folder, clip=0.01)
    seen = []
    learner.stepper.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.flatten() for p in learner.parameters]).norm())
    )
    done = update(learner, [flat(turns_of(5))])
    assert done.grad_norm > 0.01
    assert float(seen[0]) == pytest.approx(0.01, rel=1e-4)


def test_a_loss_that_is_not_finite_skips_the_update_and_names_the_turn(model_folder):
    turns = turns_of(6)
    turns[3].advantages[:] = np.inf
    learner = learner_of(model_folder)
    before = weights(learner)
    done = update(learner, pack(turns, budget=60, skip_zero=True))
    assert done.skipped == turns[3].id
    assert torch.equal(weights(learner), before)
    assert learner.version == 0
    fine = update(learner, [flat(turns_of(4))])
    assert (fine.skipped, learner.version, learner.num_skipped) == ("", 1, 0)


def test_three_broken_updates_in_a_row_stop_the_run(model_folder):
    turns = turns_of(2)
    turns[1].advantages[:] = np.nan
    learner = learner_of(model_folder)
    update(learner, [flat(turns)])
    update(learner, [flat(turns)])
    with pytest.raises(DivergedError, match=r"e1/solver"):
        update(learner, [flat(turns)])


def test_the_learning_rate_warms_up_and_falls():
    linear = Optimizer(lr=1.0, warmup_steps=3, schedule="linear")
    assert [linear.lr_at(u, total=7) for u in range(7)] == [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25]
    share = Optimizer(lr=1.0, warmup_ratio=0.4, schedule="linear")  # 3 of 7, rounded
    assert [share.lr_at(u, total=7) for u in range(7)] == [
        linear.lr_at(u, total=7) for u in range(7)
    ]
    with pytest.raises(ValueError, match="warmup_steps and warmup_ratio say the same"):
        Optimizer(warmup_steps=3, warmup_ratio=0.4)
    cosine = Optimizer(lr=2.0, schedule="cosine")
    assert cosine.lr_at(5, total=10) == pytest.approx(1.0)
    assert Optimizer(lr=3.0).lr_at(9, total=10) == 3.0
    least = Optimizer(lr=2.0, schedule="cosine", min_lr_ratio=0.1)
    assert [least.lr_at(u, total=10) for u in (0, 5, 10)] == pytest.approx([2.0, 1.1, 0.2])
    with pytest.raises(ValueError, match="min_lr_ratio has no effect with a constant schedule"):
        Optimizer(min_lr_ratio=0.1)


def test_saved_and_loaded_learners_go_on_bit_for_bit(model_folder, tmp_path):
    batches = [flat(turns_of(5, seed=s)) for s in range(3)]
    straight, first = learner_of(model_folder), learner_of(model_folder)
    for batch in batches:
        update(straight, [batch])
    update(first, [batches[0]])
    (tmp_path / "p").mkdir()
    first.save(tmp_path / "p")
    second = learner_of(model_folder)
    second.load(tmp_path / "p")
    for batch in batches[1:]:
        update(second, [batch])
    assert torch.equal(weights(second), weights(straight))
    assert second.version == 3


def test_adapters_are_saved_as_peft_folders_and_loaded_bit_for_bit(model_folder, tmp_path):
    from peft import PeftModel

    def both() -> dict[str, LocalLearner]:
        tokenizer = load_tokenizer(str(model_folder))
        model = load_model(str(model_folder), device=CPU, dtype=torch.float32)
        adapters = {name: Adapter(rank=4) for name in ("a", "lora")}  # names PEFT stumbles over
        made = with_adapters(model, tokenizer, adapters, seed=1)
        return {n: LocalLearner(m, Optimizer(lr=0.01), total_updates=9) for n, m in made.items()}

    first, second = both(), both()
    other = weights(first["lora"])
    for seed in range(3):
        update(first["a"], [flat(turns_of(5, seed=seed))])
    assert torch.equal(weights(first["lora"]), other)
    assert not torch.equal(weights(first["a"]), weights(second["a"]))
    for name, learner in first.items():
        (tmp_path / name).mkdir()
        learner.save(tmp_path / name)
        second[name].load(tmp_path / name)
        assert torch.equal(weights(second[name]), weights(learner))
    base = load_model(str(model_folder), device=CPU, dtype=torch.float32)
    alone = replace(base, model=PeftModel.from_pretrained(base.model, tmp_path / "a").eval())
    batch = flat(turns_of(3))
    with torch.no_grad():
        ours = first["a"].forward(batch).logprobs
        theirs = (
            LocalLearner(
                LanguageModel(alone, first["a"].model.tokenizer), Optimizer(lr=1.0), total_updates=1
            )
            .forward(batch)
            .logprobs
        )
    assert alike(ours, theirs)


def test_mismatch_is_measured_on_sampled_ids(model_folder):
    turns = turns_of(3)
    learner = learner_of(model_folder)
    batch = flat(turns)
    with torch.no_grad():
        exact = learner.forward(batch).logprobs.numpy()
    batch.old_logprobs = (exact - np.float32(math.log(3.0)) * batch.mask).astype(np.float32)
    done = update(learner, [batch])
    found = done.agent_metrics["solver"]
    assert found["mismatch_mean"] == pytest.approx(math.log(3), rel=1e-4)
    assert found["mismatch_max"] == pytest.approx(math.log(3), rel=1e-4)
    assert found["mismatch_kl"] == pytest.approx(3 - 1 - math.log(3), rel=1e-3)
    assert found["mismatch_outside"] == 1.0


def test_a_value_head_without_a_finite_gradient_stops_the_policy_too_and_leaves_nothing(
    model_folder,
):
    """A skipped step is skipped whole, and the next one is as if it had not been."""
    algorithm = Ppo(epochs=1)

    def learner() -> LocalLearner:
        return LocalLearner(
            language_model(model_folder), Optimizer(lr=1e-3), total_updates=9,
            head=Optimizer(lr=1e-2),
        )  # fmt: skip

    def batch(seed: int):
        turns = turns_of(4, seed=seed)
        for each in turns:
            each.training.values = np.zeros(len(each.tokens), dtype=np.float32)
            each.returns = np.ones(len(each.tokens), dtype=np.float32)
        return flat(turns)

    def step(made: LocalLearner, batch):
        [done] = asyncio.run(made.update([[batch]], algorithm, per_agent=False))
        return done

    broken = batch(1)
    broken.returns[np.flatnonzero(broken.mask)[0]] = np.inf  # breaks the head alone: it is at 0
    disturbed, calm = learner(), learner()
    before = weights(disturbed)
    assert step(disturbed, broken).skipped == broken.turn_ids[0]
    assert torch.equal(weights(disturbed), before)
    assert disturbed.version == 0
    assert disturbed.head is not None
    assert calm.head is not None
    for parameter in [*disturbed.parameters, *disturbed.head.parameters()]:
        assert parameter.grad is None
    for seed in (2, 3):
        assert step(disturbed, batch(seed)).skipped == ""
        step(calm, batch(seed))
    assert torch.equal(weights(disturbed), weights(calm))
    assert torch.equal(disturbed.head.weight, calm.head.weight)


def test_a_policy_that_moved_too_far_takes_no_further_step(model_folder):
    """KL of each step: 0 before the first, then what the steps before it have done."""
    turns = turns_of(6)
    before = learner_of(model_folder)
    noted = asyncio.run(before.annotate(turns, {"prox_logprobs"}, budget=500))
    for each in turns:
        each.training.prox_logprobs = noted[each.id]["prox_logprobs"]
    steps = [[flat(turns)] for _ in range(6)]

    def run(**options):
        learner = learner_of(model_folder)
        return learner, asyncio.run(
            learner.update(steps, DrMas(epochs=6, **options), per_agent=False)
        )

    learner, free = run()
    assert len(free) == learner.num_steps == 6
    assert free[0].kl == pytest.approx(0.0, abs=1e-6)
    assert 0 < free[1].kl < free[2].kl < free[3].kl
    limit = (free[1].kl + free[2].kl) / 2
    learner, stopped = run(target_kl=limit)
    assert len(stopped) == learner.num_steps == 3, "the third one said so"
    assert [done.kl for done in stopped] == [done.kl for done in free[:3]]
    moved = asyncio.run(learner.annotate(turns, {"new_logprobs"}, budget=500))
    d = np.concatenate([moved[t.id]["new_logprobs"] - t.training.prox_logprobs for t in turns])
    assert np.mean(np.exp(d) - 1 - d) == pytest.approx(free[3].kl, rel=1e-3)


def test_an_agents_second_turn_is_valued_by_the_second_head(model_folder):
    """The last head values all later ones; each learns from its own turns only."""
    algorithm = Ppo(epochs=1, value_coef=1.0)
    learner = LocalLearner(
        language_model(model_folder), Optimizer(lr=1e-3), total_updates=9,
        head=Optimizer(lr=1e-2), heads=3,
    )  # fmt: skip
    assert learner.head is not None
    with torch.no_grad():
        learner.head.bias.copy_(torch.tensor([0.25, 0.5, 0.75]))
    turns = turns_of(6)
    for number, each in enumerate(turns):
        each.index = number
        each.training.values = np.zeros(len(each.tokens), dtype=np.float32)
        each.returns = np.ones(len(each.tokens), dtype=np.float32)
    noted = asyncio.run(learner.annotate(turns, {"values"}, budget=60))
    expected = [0.25, 0.5, 0.75, 0.75, 0.75, 0.75]
    for each, value in zip(turns, expected, strict=True):
        assert noted[each.id]["values"].tolist() == [value] * len(each.tokens)
        each.training.values = noted[each.id]["values"]
    first = [each for each in turns if each.index == 0]
    asyncio.run(learner.update([[flat(first)]], algorithm, per_agent=False))
    assert learner.head.bias[0] != 0.25
    assert learner.head.bias[1:].tolist() == [0.5, 0.75]


def test_a_resumed_optimizer_has_the_options_of_this_run(model_folder, tmp_path):
    """And the moments of the run before."""
    before = learner_of(model_folder, weight_decay=0.1, betas=(0.9, 0.9), eps=1e-6)
    update(before, [flat(turns_of(4))])
    before.save(tmp_path)
    after = learner_of(model_folder, weight_decay=0.5, betas=(0.8, 0.95), eps=1e-5)
    after.load(tmp_path)
    for group in after.stepper.optimizer.param_groups:
        assert group["weight_decay"] in (0.0, 0.5)
        assert (tuple(group["betas"]), group["eps"]) == ((0.8, 0.95), 1e-5)
    assert any(g["weight_decay"] == 0.5 for g in after.stepper.optimizer.param_groups)
    old, new = (one.stepper.optimizer.state_dict()["state"] for one in (before, after))
    assert all(torch.equal(old[k]["exp_avg"], new[k]["exp_avg"]) for k in old)


@pytest.mark.parametrize("per_agent", [False, True])
def test_what_has_no_gradient_does_not_decay_however_norms_are_measured(model_folder, per_agent):
    """Adapters of experts that no token reached, for one."""
    model = language_model(model_folder)
    model.model.register_parameter("unused", torch.nn.Parameter(torch.ones(4, 4)))
    options = Optimizer(lr=0.1, weight_decay=0.5)
    learner = LocalLearner(model, options, total_updates=10)
    turns = turns_of(4)
    for number, one in enumerate(turns):
        one.agent = f"agent {number % 2}"
    batches = [flat([t for t in turns if t.agent == name]) for name in ("agent 0", "agent 1")]
    update(learner, batches, per_agent=per_agent)
    assert torch.equal(model.model.unused, torch.ones(4, 4))


@pytest.mark.parametrize("adapter", [None, Adapter(rank=4)])
def test_an_id_that_the_tokenizer_does_not_have_is_refused(model_folder, adapter):
    """Compiled loops would write beyond their arrays."""
    model = language_model(model_folder)
    if adapter is not None:
        model = with_adapters(model.loaded, model.tokenizer, {"a": adapter}, seed=0)["a"]
    learner = LocalLearner(model, Optimizer(lr=0.1), total_updates=10)
    turns = turns_of(2)
    for outside in (-1, model.vocabulary):
        turns[1].tokens[0] = outside
        with pytest.raises(ValueError, match=rf"token id {outside}, and its tokenizer has"):
            update(learner, [flat(turns)])
