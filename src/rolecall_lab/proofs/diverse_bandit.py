"""Measures how many right answers a policy keeps, with and without the reward `diversity`.

A bandit has four arms, of which three are right. A policy that begins with one of the three soon
gives nearly nothing else; paid for differing from other right attempts, it keeps all three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.rloo import Rloo
from rolecall.rewards.diversity import Diversity
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Table, agent_turns, make_episodes, update

BEGIN = (0.4, 0.1, 0.05, 0.45)  # probabilities at first; the last arm is wrong
RIGHT = 3
NUM_TASKS, ATTEMPTS = 16, 8
NUM_SAMPLES = NUM_TASKS * ATTEMPTS
NUM_STEPS, LEARNING_RATE, WEIGHT = 120, 1.0, 0.5
NUM_SEEDS = 3
KEPT, FEW = 2.9, 1.5  # right answers, of 3: bounds of every seed with the reward and without


def learn(weight: float, *, seed: int) -> Doubles:
    """Return the probabilities of the arms at the end; `weight` is that of the reward."""
    random, table, reward = np.random.default_rng(seed), Table([BEGIN]), Diversity()
    algorithm = Rloo()
    for _ in range(NUM_STEPS):
        arms = table.sample(np.zeros(NUM_SAMPLES, dtype=np.int32), random)
        paid = (arms < RIGHT).astype(np.float64)
        episodes = make_episodes(
            {"solver": table}, arms[:, None], {"team": paid}, attempts=ATTEMPTS
        )
        for episode in episodes:
            episode.scores = dict(episode.rewards)
        for start in range(0, NUM_SAMPLES, ATTEMPTS):
            group = episodes[start : start + ATTEMPTS]
            for episode, bonus in zip(group, reward.pay_group(group), strict=True):
                episode.rewards["solver"] = weight * bonus["solver"]
        turns = agent_turns(episodes, "solver")
        algorithm.credit(episodes)
        update(table, turns, algorithm, lr=LEARNING_RATE)
    return table.probabilities()[0]


def count_right(probabilities: Doubles) -> float:
    """Return how many right answers a policy gives, as exp of their entropy.

    Three equal ones -> 3, one alone -> 1.
    """
    right = probabilities[:RIGHT] / probabilities[:RIGHT].sum()
    return math.exp(-sum(p * math.log(p) for p in right if p > 0))


def claims() -> Iterator[Claim]:
    """Yield the number of right answers without and with the reward, and what it costs."""
    what = f"Bandit with three right arms: right answers kept after {NUM_STEPS} steps of RLOO"
    plain = [learn(0.0, seed=seed) for seed in range(NUM_SEEDS)]
    diverse = [learn(WEIGHT, seed=seed) for seed in range(NUM_SEEDS)]
    few, kept = (list(map(count_right, each)) for each in (plain, diverse))
    yield Claim(f"{what}.", f"< {FEW} in every seed", _shown(few), max(few) < FEW)
    yield Claim(
        f"The same with the reward diversity of weight {WEIGHT}.",
        f"> {KEPT} in every seed",
        _shown(kept),
        min(kept) > KEPT,
    )
    right = [float(each[:RIGHT].sum()) for each in diverse]
    yield Claim(
        "P(right) with that reward: wrong answers earn nothing by differing.",
        "> 0.95 in every seed",
        _shown(right),
        min(right) > 0.95,
    )


def _shown(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
