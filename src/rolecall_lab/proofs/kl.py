"""Finds which estimators of KL(policy || reference) have its gradient when used as a loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Estimator
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Table, agent_turns, gradient, make_episodes, table_logprobs

POLICY, REFERENCE = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]
TOLERANCE = 1e-6


def estimator_gradient(form: Estimator) -> Tensor:
    """The gradient on the logits [3] of the KL as a loss, over every action as often as likely."""
    policy, reference = Table([POLICY]), Table([REFERENCE])
    actions = np.repeat([[0], [1], [2]], [5, 3, 2], axis=0).astype(np.int32)
    episodes = make_episodes({"solver": policy}, actions, {"team": np.ones(len(actions))})
    algorithm = Grpo(kl=1.0, kl_form=form)
    algorithm.credit(episodes)
    turns = agent_turns(episodes, "solver")
    for turn, logprobs in zip(turns, table_logprobs(reference, turns), strict=True):
        turn.training.ref_logprobs = logprobs
    return gradient(policy, turns, algorithm)[0]


def divergence_gradient() -> Tensor:
    """Return the gradient of the KL itself, by autograd: [3]."""
    policy, reference = Table([POLICY]).logits, Table([REFERENCE]).logits.detach()
    logprobs = policy.log_softmax(-1)
    divergence = (logprobs.exp() * (logprobs - reference.log_softmax(-1))).sum()
    return torch.autograd.grad(divergence, policy)[0][0]


def claims() -> Iterator[Claim]:
    """k2 has the gradient of the KL, k1 none, k3 another one."""
    exact = divergence_gradient()
    k1, k2, k3 = (estimator_gradient(form) for form in ("k1", "k2", "k3"))
    yield Claim(
        "On-policy, the gradient of k2 as a loss is that of the KL to the reference.",
        _show(exact),
        _show(k2),
        bool((k2 - exact).abs().max() < TOLERANCE),
    )
    yield Claim(
        "On-policy, the gradient of k1 as a loss is 0.",
        _show(torch.zeros(3)),
        _show(k1),
        bool(k1.abs().max() < TOLERANCE),
    )
    yield Claim(
        "On-policy, the gradient of k3 as a loss is not that of the KL.",
        f"not {_show(exact)}",
        _show(k3),
        bool((k3 - exact).abs().max() > 0.01),
    )


def _show(gradient: Tensor) -> str:
    return str([round(x, 4) + 0.0 for x in gradient.tolist()])
