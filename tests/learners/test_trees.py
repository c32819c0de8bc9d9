"""Turns on shared prefixes: the same loss, gradient and log-probs as one by one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.dapo import Dapo
from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.happo import Happo
from rolecall.algorithms.mappo import Mappo
from rolecall.algorithms.mixing import Qmix, Vdn
from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.reinforce import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from rolecall.algorithms.rloo import Rloo
from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.core.types import Turn
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.models.attention.prefix_tree import PrefixTreeAttention
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.training.train_step import annotate
from tests.toy import CPU, alike, language_model, turn

ALGORITHMS = [
    Grpo(),
    Grpo(kl=0.1, entropy=0.01, dual_clip=3.0, epochs=2),
    Grpo(anchor="sampler", correction="token_mis"),
    DrMas(),
    DrMas(correction="sequence_tis"),
    DrMas(correction="geometric_mis"),
    Rloo(),
    ReinforcePlusPlus(),
    ReinforcePlusPlusBaseline(),
    Dapo(longest=8),
    Ppo(),
    Mappo(),
    Happo(),
    Vdn(),
    Qmix(),
    AtGrpo(),
    Counterfactual(),
    Dpo(pair_up="all"),
]
NAMES = [f"{type(a).__name__}{i}" for i, a in enumerate(ALGORITHMS)]


def conversation(seed: int = 0) -> list[Turn]:
    """Three groups of four answers to one prompt; half of the answers are spoken to again."""
    random = np.random.default_rng(seed)
    turns: list[Turn] = []

    def ids(low: int, high: int) -> np.ndarray:
        return random.integers(10, 200, random.integers(low, high))

    for group in range(3):
        prompt = ids(20, 30)
        for member in range(4):
            episode = f"e{group}.{member}"
            first = turn(prompt=prompt, tokens=ids(2, 9), episode=episode, task=f"x{group}")
            turns.append(first)
            if member % 2:
                longer = np.concatenate([*first.ids, ids(3, 6)])
                again = turn(
                    prompt=longer, tokens=ids(2, 9), episode=episode, task=f"x{group}", path=(1,)
                )
                again.index = 1
                turns.append(again)
    twin = turn(prompt=turns[0].prompt, tokens=turns[0].tokens, episode="twin", task="x0")
    turns.append(twin)  # equal sampled ids stay apart
    for each in turns:
        length = len(each.ids[1])
        for owner, name in (
            (each, "advantages"), (each, "returns"), (each.training, "values")
        ):  # fmt: skip
            setattr(owner, name, random.normal(size=length).astype(np.float32))
        for owner, name in (
            (each.training, "prox_logprobs"), (each.training, "ref_logprobs"), (each, "logprobs")
        ):  # fmt: skip
            setattr(owner, name, random.normal(-5.0, 0.4, length).astype(np.float32))
        each.training.preference = float(random.integers(0, 3))
        each.returns = np.full(length, each.training.preference, dtype=np.float32)
        each.weight = float(random.uniform(0.5, 2.0))
    return turns


def learner_of(folder, *, adapter: bool) -> LocalLearner:
    if adapter:
        base = load_model(str(folder), device=CPU, dtype=torch.float32)
        tokenizer = load_tokenizer(str(folder))
        model = with_adapters(base, tokenizer, {"a": Adapter(rank=4)}, seed=1)["a"]
        for name, weight in model.named_parameters():
            if "lora_B" in name:  # they start at 0, where an adapter does nothing
                torch.nn.init.normal_(weight, std=0.05)
    else:
        model = language_model(folder)
    torch.manual_seed(0)
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, head=Optimizer(lr=1e-3))
    assert learner.head is not None
    torch.nn.init.normal_(learner.head.weight)
    return learner


def measured(learner: LocalLearner, algorithm, turns, **options):
    """Loss, gradient of the model and of the value head."""
    pairs = algorithm.pairs(turns) if algorithm.keep_together else None
    batches = pack(turns, budget=options.pop("budget", 10_000), pairs=pairs, **options)
    total, count = 0.0, 0.0
    learner.model.model.zero_grad()
    learner.head.zero_grad()
    for batch in batches:
        loss = algorithm.loss(
            batch, learner.forward(batch, entropy="gradient" if algorithm.entropy else None)
        )
        loss.total.backward()
        total, count = total + float(loss.total.detach()), count + loss.count
    gradients = [
        torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        for parameters in (learner.parameters, [learner.model.model.get_output_embeddings().weight])
        if any(p.grad is not None for p in parameters)
    ]
    head = learner.head.weight.grad
    gradients += [torch.zeros(1) if head is None else head.flatten()]
    return total / count, torch.cat(gradients) / count, batches


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)
def test_tree_equals_flat(model_folder, algorithm, adapter):
    learner, turns = learner_of(model_folder, adapter=adapter), conversation()
    flat_loss, flat_gradient, flat = measured(learner, algorithm, turns, share=False)
    tree_loss, tree_gradient, trees = measured(learner, algorithm, turns, share=True)
    assert sum(len(b.tokens) for b in trees) < 0.6 * sum(len(b.tokens) for b in flat)
    assert tree_loss == pytest.approx(flat_loss, rel=1e-5, abs=1e-6)
    scale = float(flat_gradient.abs().max())
    assert scale > 1e-3
    assert float((tree_gradient - flat_gradient).abs().max()) < 2e-5 * scale + 1e-7


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=NAMES)
def test_micro_batches_of_trees_equal_whole(model_folder, algorithm):
    learner, turns = learner_of(model_folder, adapter=False), conversation(seed=1)
    loss, gradient, _ = measured(learner, algorithm, turns)
    budget = 60 if algorithm.keep_together else 110
    parts_loss, parts_gradient, parts = measured(learner, algorithm, turns, budget=budget)
    assert len(parts) >= 3
    assert parts_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    scale = float(gradient.abs().max())
    assert float((parts_gradient - gradient).abs().max()) < 2e-5 * scale + 1e-7


def test_tree_equals_flat_in_log_probs_of_every_family(any_model_folder):
    learner = LocalLearner(language_model(any_model_folder), Optimizer(lr=1.0), total_updates=1)
    turns = conversation(seed=2)
    asyncio.run(annotate(learner, turns, {"new_logprobs"}, budget=10_000))
    for each in turns:
        [alone] = pack([each], budget=10_000)
        found = learner.forward(alone).logprobs[alone.mask > 0].detach().numpy()
        assert alike(each.training.new_logprobs, found)


def test_a_tree_without_its_mask_would_be_noticed(model_folder, monkeypatch):
    learner, turns = learner_of(model_folder, adapter=False), conversation()
    _, right, _ = measured(learner, Grpo(), turns)
    whole = PrefixTreeAttention.__init__

    def without_mask(self, parent, depth):
        """Siblings see those before them."""
        whole(self, parent, depth)
        self.branches = [(start, stop, len(parent)) for start, stop, _ in self.branches]

    monkeypatch.setattr(PrefixTreeAttention, "__init__", without_mask)
    _, wrong, _ = measured(learner, Grpo(), turns)
    assert float((wrong - right).abs().max()) > 0.01 * float(right.abs().max())


def test_agents_that_read_one_another_train_in_one_tree_as_they_do_apart(model_folder):
    turns = conversation()
    for each in turns:
        each.agent = "solver" if each.index == 0 else "verifier"
    for each in turns[::5]:
        each.advantages[:] = 0.0
    updates, weights = [], []
    for by_agent in (True, False):
        learner = LocalLearner(language_model(model_folder), Optimizer(lr=1e-3), total_updates=1)
        batches = pack(turns, budget=10_000, skip_zero=True, by_agent=by_agent)
        [done] = asyncio.run(learner.update([batches], Grpo(), per_agent=False))
        updates.append((done, sum(len(batch.tokens) for batch in batches)))
        weights.append(torch.cat([p.detach().flatten() for p in learner.parameters]))
    (apart, size_apart), (together, size_together) = updates
    assert size_together < 0.8 * size_apart
    assert torch.allclose(*weights, atol=1e-6)
    assert together.grad_norm == pytest.approx(apart.grad_norm, rel=1e-5)
    assert together.agent_metrics.keys() == {"solver", "verifier"}
    for agent, found in together.agent_metrics.items():
        assert found == pytest.approx(apart.agent_metrics[agent], rel=1e-4, abs=1e-6)
