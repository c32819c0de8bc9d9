"""Activations that are computed again: the same gradient, less memory."""

from __future__ import annotations

import pytest
import torch

from rolecall.learners.activations import recompute_activations
from tests.learners.test_local import flat
from tests.learners.test_logprobs import saved_bytes
from tests.learners.test_packing import turns_of
from tests.learners.test_trees import learner_of


@pytest.mark.parametrize("adapter", [False, True], ids=["whole", "adapter"])
def test_gradients_are_the_same_and_less_is_kept(model_folder, adapter):
    learner, batch = learner_of(model_folder, adapter=adapter), flat(turns_of(9))
    network = learner.model.model

    def gradient() -> tuple[torch.Tensor, int]:
        network.zero_grad()
        logprobs, kept = saved_bytes(lambda: learner.forward(batch).logprobs)
        logprobs.sum().backward()
        return torch.cat([p.grad.flatten() for p in learner.parameters]), kept

    plain, plain_bytes = gradient()
    with recompute_activations(network):
        again, bytes_ = gradient()
    assert torch.equal(plain, again)
    assert bytes_ < 0.6 * plain_bytes
    assert not any(module.training for module in network.modules())


def test_dropout_stays_off(model_folder):
    learner = learner_of(model_folder, adapter=False)
    with recompute_activations(learner.model.model):
        training = {type(m).__name__ for m in learner.model.model.modules() if m.training}
    assert training == {"Qwen3DecoderLayer"}
