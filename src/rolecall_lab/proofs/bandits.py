"""Measures how often an agent plays a bandit's best arm after some steps of an algorithm.

Every step draws samples, gives credit, packs them and descends the algorithm's own loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.a2c import A2c
from rolecall.algorithms.agentrl import AgentRl
from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.dapo import Dapo
from rolecall.algorithms.dr_grpo import DrGrpo
from rolecall.algorithms.gspo import Gspo
from rolecall.algorithms.reinforce import ReinforcePlusPlus
from rolecall.algorithms.rloo import Rloo
from rolecall.algorithms.whitening import whiten_families
from rolecall.core.types import Episode, Group
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import (
    Table,
    agent_turns,
    make_episodes,
    table_logprobs,
    update,
    value,
)

PAYS = (0.2, 0.5, 0.8)  # how often each arm pays 1
BEST = 2
NUM_TASKS, ATTEMPTS = 16, 8
NUM_SAMPLES = NUM_TASKS * ATTEMPTS
NUM_STEPS, LEARNING_RATE = 60, 1.0
NUM_SEEDS = 2
MOST_ROUNDS = 10  # of tasks that replace filtered ones
KNOWN = 0.95  # P(best) that every seed reaches; the lowest of ten measured ones had .954


def groups(table: Table, random: np.random.Generator, *, start: int) -> list[Group]:
    """Attempts at one round of tasks."""
    arms = table.sample(np.zeros(NUM_SAMPLES, dtype=np.int32), random)
    paid = (random.random(NUM_SAMPLES) < np.array(PAYS)[arms]).astype(np.float64)
    episodes = make_episodes(
        {"solver": table}, arms[:, None], {"team": paid}, attempts=ATTEMPTS, start=start
    )
    return [episodes[n : n + ATTEMPTS] for n in range(0, NUM_SAMPLES, ATTEMPTS)]


def kept_episodes(algorithm: Algorithm, table: Table, random: np.random.Generator) -> list[Episode]:
    """Return the episodes of a step; groups that the algorithm filters out are replaced."""
    kept: list[Group] = []
    for number in range(MOST_ROUNDS):
        drawn = groups(table, random, start=number * NUM_SAMPLES)
        kept += [group for group in drawn if algorithm.keep_group(group)]
        if len(kept) >= NUM_TASKS:
            break
    return [episode for group in kept[:NUM_TASKS] for episode in group]


def bandit(algorithm: Algorithm, *, seed: int, lr: float = LEARNING_RATE) -> float:
    """P(best) at the end."""
    random = np.random.default_rng(seed)
    table, reference = (Table([[1 / 3] * 3]) for _ in range(2))
    for _ in range(NUM_STEPS):
        episodes = kept_episodes(algorithm, table, random)
        turns = agent_turns(episodes, "solver")
        if algorithm.needs_reference:
            for turn, logprobs in zip(turns, table_logprobs(reference, turns), strict=True):
                turn.training.ref_logprobs = logprobs
        if algorithm.critic == "agent":
            value(turns, float(table.values.detach()[0]))
        algorithm.credit(episodes)
        if algorithm.per_family:
            whiten_families(turns, dict.fromkeys((turn.task for turn in turns), ""))
        update(table, turns, algorithm, lr=lr)
    return float(table.probabilities()[0, BEST])


def claims() -> Iterator[Claim]:
    """Yield claims of each algorithm at its defaults; one token is the longest answer there is."""
    what = f"P(best) after {NUM_STEPS} steps of {NUM_SAMPLES} samples by "
    learned = {}
    for name, algorithm in (
        ("RLOO", Rloo()),
        ("REINFORCE++", ReinforcePlusPlus()),
        ("DAPO", Dapo(longest=2)),
        ("GSPO", Gspo()),
        ("A2C", A2c()),
        ("AgentRL", AgentRl()),
    ):
        probabilities = learned[name] = [bandit(algorithm, seed=seed) for seed in range(NUM_SEEDS)]
        yield Claim(
            f"Bandit with arms that pay {PAYS}: {what}{name}.",
            f"> {KNOWN} in every seed",
            _shown(probabilities),
            min(probabilities) > KNOWN,
        )
    rate = LEARNING_RATE * ATTEMPTS / (ATTEMPTS - 1)  # its advantages are 7/8 of RLOO's
    probabilities = [bandit(DrGrpo(turn_length=1), seed=seed, lr=rate) for seed in range(NUM_SEEDS)]
    yield Claim(
        f"The same by Dr. GRPO, at {ATTEMPTS}/{ATTEMPTS - 1} of the learning rate.",
        f"{_shown(learned['RLOO'])}: what RLOO learned, within .001",
        _shown(probabilities),
        max(abs(a - b) for a, b in zip(probabilities, learned["RLOO"], strict=True)) < 1e-3,
    )


def _shown(probabilities: list[float]) -> str:
    return ", ".join(f"{p:.3f}" for p in probabilities)
