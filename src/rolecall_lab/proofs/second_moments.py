"""Measures how large advantages are for two agents whose rewards differ in mean and spread."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Table, agent_turns, first_advantages, make_episodes

NUM_EPISODES = 2000
TOLERANCE = 0.01


def quantiles(mean: float, spread: float) -> Doubles:
    """Rewards spread as the normal distribution is, without the noise of a sample: [N]."""
    levels = (torch.arange(NUM_EPISODES, dtype=torch.float64) + 0.5) / NUM_EPISODES
    return (mean + spread * torch.special.ndtri(levels)).numpy()


def second_moments(algorithm: Grpo) -> tuple[float, float]:
    """E[A^2] of the solver and of the verifier."""
    rewards = {"solver": quantiles(0.2, 0.1), "verifier": quantiles(0.9, 0.3)}
    team = {agent: Table([[1.0]]) for agent in rewards}
    actions = torch.zeros(NUM_EPISODES, 2, dtype=torch.int32).numpy()
    episodes = make_episodes(team, actions, rewards)
    algorithm.credit(episodes)
    solver, verifier = (
        float((first_advantages(agent_turns(episodes, agent)) ** 2).mean()) for agent in team
    )
    return solver, verifier


def claims() -> Iterator[Claim]:
    """E[A^2] with one mean and spread for all agents, and agent by agent."""
    for algorithm, how, expected in (
        (Grpo(count="turn"), "pooled", (0.7681, 1.2319)),
        (DrMas(), "agent-wise", (1.0, 1.0)),
    ):
        moments = second_moments(algorithm)
        yield Claim(
            f"Rewards N(.2, .1) and N(.9, .3), {NUM_EPISODES} quantiles of each: E[A^2] of two "
            f"agents with {how} statistics.",
            "{:.3f} and {:.3f}, +-".format(*expected) + str(TOLERANCE),
            "{:.4f} and {:.4f}".format(*moments),
            max(abs(a - b) for a, b in zip(moments, expected, strict=True)) <= TOLERANCE,
        )
