"""Measures whether MA-AIRL finds the policy of an expert and the score that explains it.

The expert pulls three arms with known probabilities. Nobody pays for an arm: the policy earns what
a discriminator with a score for each arm makes of its pulls. Both settle where the policy is the
expert's, and where softmax of the scores is too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rolecall.algorithms.ma_airl import MaAirl
from rolecall.critics.discriminator import discrimination_loss, discriminator_reward
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Table, agent_turns, make_episodes, update

EXPERT = (0.7, 0.2, 0.1)
NUM_STEPS, NUM_SAMPLES, NUM_SEEDS = 2000, 256, 1
SCORER_RATE, POLICY_RATE = 0.02, 0.5
TOLERANCE = 0.015
LOSS = (1.386, 1.387)  # 2 ln 2 = 1.386294
AVERAGED = 200  # steps at the end


@dataclass(frozen=True, slots=True)
class Learned:
    """Means over the last steps."""

    policy: Doubles  # [U]
    scores: Doubles  # [U] softmax of f
    loss: float


def imitate(*, seed: int) -> Learned:
    """MA-AIRL with a table of scores in place of a network; Dr. MAS without its division."""
    random, algorithm = np.random.default_rng(seed), MaAirl(std="none")
    table, scores = Table([[1 / 3] * 3]), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=SCORER_RATE)
    nowhere = np.zeros(NUM_SAMPLES, dtype=np.int32)
    ends = []
    for _ in range(NUM_STEPS):
        arms = table.sample(nowhere, random)
        shown = random.choice(3, NUM_SAMPLES, p=EXPERT)
        episodes = make_episodes({"solver": table}, arms[:, None], {})
        turns = agent_turns(episodes, "solver")
        logprobs = torch.from_numpy(
            table.logprobs(np.zeros(3, np.int32), np.arange(3, dtype=np.int32))
        )
        paid = discriminator_reward(scores.detach(), logprobs, kind="logit").tolist()
        for turn, arm in zip(turns, arms.tolist(), strict=True):
            turn.training.inner_reward = paid[arm]
        algorithm.credit(episodes)
        update(table, turns, algorithm, lr=POLICY_RATE)
        logits = scores - logprobs
        loss = discrimination_loss(logits[shown], logits[arms])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        distribution = scores.detach().double().softmax(0).numpy()
        ends.append((table.probabilities()[0], distribution, float(loss.detach())))
    policies, explained, losses = zip(*ends[-AVERAGED:], strict=True)
    return Learned(np.mean(policies, 0), np.mean(explained, 0), float(np.mean(losses)))


def claims() -> Iterator[Claim]:
    """Policy, scores and loss of each seed."""
    learned = [imitate(seed=seed) for seed in range(NUM_SEEDS)]
    for what, estimates in (
        ("the policy", [one.policy for one in learned]),
        ("softmax of the discriminator's scores", [one.scores for one in learned]),
    ):
        worst = max(float(np.abs(one - EXPERT).max()) for one in estimates)
        yield Claim(
            f"An expert pulls arms with {EXPERT}; MA-AIRL, {NUM_STEPS} steps of {NUM_SAMPLES}: "
            f"{what} is the expert's.",
            f"{EXPERT}, each seed within {TOLERANCE}",
            f"{np.round(np.mean(estimates, 0), 3).tolist()} on average, off by {worst:.4f} at most",
            worst <= TOLERANCE,
        )
    losses = [one.loss for one in learned]
    yield Claim(
        "The same: the loss of a discriminator that can tell nobody apart is 2 ln 2.",
        f"{LOSS[0]} to {LOSS[1]}",
        ", ".join(f"{loss:.4f}" for loss in losses),
        all(LOSS[0] <= loss <= LOSS[1] for loss in losses),
    )
