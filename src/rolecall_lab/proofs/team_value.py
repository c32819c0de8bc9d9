"""Measures the variance of MAPPO's credit of two fair coins with and without a critic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.mappo import Mappo
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import (
    Ints,
    Table,
    agent_turns,
    first_advantages,
    make_episodes,
    value,
)

NUM_SAMPLES = 4096
TOLERANCE = 0.03  # of the sampled ratio


def variances(coins: Ints) -> tuple[float, float]:
    """Return the variances of the second agent's advantages under two critics; coins [N, 2].

    The first critic is V after the first coin, the second a constant.
    """
    team = {agent: Table([[0.5, 0.5]]) for agent in ("first", "second")}
    episodes = make_episodes(team, coins, {"team": coins.sum(1).astype(np.float64)}, in_turn=True)
    second = agent_turns(episodes, "second")
    value(agent_turns(episodes, "first"), 1.0)
    results = []
    for expected in (coins[:, 0] + 0.5, 1.0):
        value(second, expected)
        Mappo(whiten=False).credit(episodes)
        results.append(float(first_advantages(second).var()))
    return results[0], results[1]


def claims() -> Iterator[Claim]:
    """Yield an exact claim, over the four outcomes, and a sampled one."""
    every = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.int32)
    critic, constant = variances(every)
    yield Claim(
        "r = a1 + a2, fair coins: variance of agent 2's A with V(a1), and with V constant.",
        "0.25 and 0.50",
        f"{critic:.4f} and {constant:.4f}",
        (critic, constant) == (0.25, 0.5),
    )
    sampled = np.random.default_rng(0).integers(2, size=(NUM_SAMPLES, 2), dtype=np.int32)
    critic, constant = variances(sampled)
    yield Claim(
        f"The same, {NUM_SAMPLES} samples: ratio of the variances.",
        f"0.50 +- {TOLERANCE}",
        f"{critic / constant:.3f}",
        abs(critic / constant - 0.5) <= TOLERANCE,
    )
