"""Trains the same turns on the CPU and on the GPU: annotations, updates and weights must agree."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.checks import Figures, Machine, add_checks, check
from benchmarks.gpu.models import load, load_adapters, make_turns
from benchmarks.gpu.part_engine import make_family
from rolecall.algorithms.grpo import Grpo
from rolecall.config.optimizer import Optimizer
from rolecall.core.seeding import derive_seed
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.learners.ranks.spec import LearnerSpec
from rolecall.models.attention.flex_proof import unfit
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.learners.test_ranks import Beside, spec_of
from tests.toy import LIKE_GRPO, algorithm_cases, alike, crew_config

ALGORITHMS = [name for name in algorithm_cases(Path("x")) if name not in LIKE_GRPO]
ADAM = Optimizer(lr=1e-3, eps=1e-4)


def an_update_equals_that_of_the_cpu(machine: Machine, *, algorithm: str) -> None:
    """A step of a whole run: annotations, norms, metrics and the weights that come of it."""
    base = make_family(machine, "Qwen3", "full")
    steps = 2 if algorithm in ("vdn", "qmix") else 1  # their critics know nothing at first
    settings = {"evaluation": {"tasks": 0}, "trainer": {"steps": steps}}
    config = crew_config(base, **settings, **algorithm_cases(base)[algorithm])
    config["learner"] = {"device": "cpu"}
    for policy in config["policies"].values():  # so that steps depend smoothly on gradients
        policy.setdefault("optimizer", {})["eps"] = 1e-4
    folder = machine.scratch / f"learner-{algorithm.replace(' ', '-')}"
    shutil.rmtree(folder, ignore_errors=True)
    trainer = trainer_of(config, folder, Display())
    run, inner = trainer.run, trainer.run.learners["a"]
    section, used = run.config.policies["a"], run.get_step_algorithm("a")
    spec = spec_of(
        base, "replicated", adapter=section.adapter, optimizer=section.optimizer,
        seed=derive_seed(run.config.trainer.seed, "adapters") % 2**31,
        total_updates=steps * used.epochs * used.minibatches, reference=section.reference,
        head=run.config.critics["agent"].optimizer if used.critic == "agent" else None,
        heads=run.config.critics["agent"].heads if used.critic == "agent" else 1,
    )  # fmt: skip
    other = build_learner(spec, machine.device)
    run.learners["a"] = Beside(inner, [other])
    asyncio.run(trainer.train())
    trainer.folder.release()
    reason = unfit("training", machine.device)
    assert not reason, reason
    assert inner.num_steps > 0
    assert alike(_flatten(other), _flatten(inner))


add_checks(
    "learner",
    {
        f"update_of_{name.replace(' ', '_')}": partial(
            an_update_equals_that_of_the_cpu, algorithm=name
        )
        for name in ALGORITHMS
    },
)


def build_learner(spec: LearnerSpec, device: torch.device) -> LocalLearner:
    """Return the learner of a specification in this process, on a device."""
    loaded = load_model(spec.base, device=device, dtype=getattr(torch, spec.dtype), sampled=False)
    tokenizer = load_tokenizer(spec.base)
    model = LanguageModel(loaded, tokenizer)
    if spec.adapter is not None:
        adapters = with_adapters(loaded, tokenizer, {"trained": spec.adapter}, seed=spec.seed)
        model = adapters["trained"]
    reference = None
    if spec.reference is not None:
        reference = "base" if spec.adapter is not None else model.frozen_copy()
    return LocalLearner(
        model, spec.optimizer, total_updates=spec.total_updates, reference=reference,
        head=spec.head, heads=spec.heads,
    )  # fmt: skip


@check
def bfloat16_moves_as_float32_does(machine: Machine) -> Figures:
    """Weights in bfloat16 with float32 masters take steps in the direction of float32's."""
    base = make_family(machine, "Qwen3", "full")
    moves = []
    for dtype in (torch.float32, torch.bfloat16):
        model = load(machine, base, dtype=dtype)
        learner = LocalLearner(model, ADAM, total_updates=8)
        before = _flatten(learner)
        for _ in range(4):
            _update(learner)
        moves.append(_flatten(learner) - before)
    cosine = float(torch.nn.functional.cosine_similarity(*moves, dim=0))
    assert cosine > 0.9, cosine
    return {"cosine": cosine}


@check
def recomputed_activations_give_the_same_weights(machine: Machine) -> None:
    """Activation checkpointing changes memory and time, not one bit of the update."""
    base = make_family(machine, "Qwen3", "full")
    weights = []
    for recomputes in (False, True):
        learner = LocalLearner(
            load(machine, base, dtype=torch.float32), ADAM, total_updates=8,
            checkpoint_activations=recomputes,
        )  # fmt: skip
        _update(learner)
        weights.append(_flatten(learner))
    assert torch.equal(*weights)


@check
def a_saved_learner_continues_bit_for_bit(machine: Machine) -> None:
    """Two updates with a save and a load between them end at the weights of two in a row."""
    machine.require_gpu("tensors of the stand-in have no bytes to save")
    base = make_family(machine, "Qwen3", "full")
    folder = machine.scratch / "saved-learner"
    folder.mkdir(exist_ok=True)
    straight = LocalLearner(load(machine, base, dtype=torch.bfloat16), ADAM, total_updates=8)
    _update(straight)
    straight.save(folder)
    _update(straight)
    resumed = LocalLearner(load(machine, base, dtype=torch.bfloat16), ADAM, total_updates=8)
    resumed.load(folder)
    _update(resumed)
    assert torch.equal(_flatten(straight), _flatten(resumed))


@check
def an_adapter_trains_alone(machine: Machine) -> None:
    """An update of one adapter leaves the base and the other adapter as they are."""
    base = make_family(machine, "Qwen3", "full")
    models = load_adapters(machine, base, ["a", "b"], dtype=torch.bfloat16)
    every = dict(models["a"].model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in every.items()}
    learner = LocalLearner(models["a"], ADAM, total_updates=8)
    _update(learner)
    own = {name for name, _ in models["a"].named_parameters()}
    for name, parameter in models["a"].model.named_parameters():
        moved = not bool(torch.equal(parameter.detach(), before[name]))
        assert not moved or name in own, f"{name} moved"
    assert any(
        not bool(torch.equal(p.detach(), before[n])) for n, p in models["a"].named_parameters()
    )


def _update(learner: LocalLearner) -> None:
    turns = make_turns(16, prompt=20, tokens=24, vocabulary=290, shared=4)
    turns = [replace(turn) for turn in turns]
    batches = pack(turns, budget=400, by_agent=False)
    [update] = asyncio.run(learner.update([batches], Grpo(), per_agent=False))
    assert not update.skipped, update.skipped


def _flatten(learner: LocalLearner) -> torch.Tensor:
    return torch.cat([p.detach().float().cpu().flatten() for p in learner.parameters])
