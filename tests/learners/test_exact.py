"""Gradients that are summed from many rows have the same bits every time."""

from __future__ import annotations

import torch

from rolecall.config.optimizer import Optimizer
from rolecall.learners.exact import select_rows
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from tests.conftest import make_model
from tests.toy import language_model, turn


def test_rows_asked_for_often_have_one_gradient():
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(600, 128, generator=random, requires_grad=True)
    index = torch.randint(10, (600,), generator=random)
    weight = torch.randn(600, 128, generator=random)
    assert torch.equal(select_rows(rows, index), rows[index])
    found = []
    for _ in range(50):
        rows.grad = None
        (select_rows(rows, index) * weight).sum().backward()
        found.append(rows.grad)
    exact = torch.zeros(600, 128, dtype=torch.float64)
    exact.index_add_(0, index, weight.double())
    assert all(torch.equal(found[0], other) for other in found)
    assert torch.allclose(found[0].double(), exact, rtol=1e-4, atol=1e-4)


def test_turns_that_share_a_prompt_have_one_gradient(tmp_path):
    """Of a model that leaves its last layer whole, too."""
    prompt = list(range(10, 30))
    random = torch.Generator().manual_seed(0)
    turns = [
        turn(
            episode=f"e{number}",
            prompt=prompt,
            tokens=torch.randint(260, (30,), generator=random).tolist(),
            advantage=float(number - 8),
        )
        for number in range(16)
    ]
    model = language_model(make_model(tmp_path, "qwen3", width=128))
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, head=Optimizer(lr=1e-3))
    assert learner.head is not None
    torch.nn.init.normal_(learner.head.weight, generator=random)
    [batch] = pack(turns, budget=4096)
    parameters = [*learner.parameters, *learner.head.parameters()]
    first = None
    for _ in range(20):
        outputs = learner.forward(batch)
        assert outputs.values is not None
        (outputs.logprobs.sum() + outputs.values.sum()).backward()
        found = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        first = found if first is None else first
        assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))
