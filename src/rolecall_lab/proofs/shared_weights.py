"""Measures which role weights learn for that two roles share: the one with the most gradient.

A solver and a verifier each say one of two words, and the right word of one is the wrong one of the
other. Their prompts differ, so that one policy can play both roles, but a step for one moves the
other's words nine tenths as far. The roles differ in what a right word pays, or in how often they
speak; the verifier has the least gradient in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.core.types import Episode, Task, Turn
from rolecall_lab.proofs import Claim, own_weights
from rolecall_lab.proofs.tabular import Table, agent_turns, overlap_states, update
from rolecall_lab.seeds import Mean, over_seeds

SHARE = 0.9  # of a step for one role that moves the other too
NUM_STEPS, ATTEMPTS, LR = 150, 32, 1.0
NUM_SEEDS = 5


@dataclass(frozen=True, slots=True)
class Role:
    """A role, whose state in a table is also its right word."""

    name: str
    state: int
    pay: float = 1.0  # of a right word
    calls: int = 1  # in an episode


VERIFIER = Role("verifier", 1)
WELL_PAID = (Role("solver", 0, pay=10.0), VERIFIER)
TALKATIVE = (Role("solver", 0, calls=8), VERIFIER)


def make_policy() -> Table:
    """Return uniform weights for both roles."""
    policy = Table([[0.5, 0.5]] * 2)
    overlap_states(policy, (0, 1), SHARE)
    return policy


def play(
    team: dict[str, Table], roles: tuple[Role, ...], random: np.random.Generator
) -> list[Episode]:
    """Play the attempts at a task; every call is paid by itself."""
    episodes = []
    for n in range(ATTEMPTS):
        episode = Episode(str(n), Task("words", ""), n, n)
        for role in roles:
            states = np.full(role.calls, role.state, dtype=np.int32)
            words = team[role.name].sample(states, random)
            logprobs = team[role.name].logprobs(states, words)
            for call in range(role.calls):
                turn = Turn(
                    id=f"{n}/{role.state}.{call}",
                    task=episode.task.id,
                    episode=episode.id,
                    agent=role.name,
                    policy=role.name,
                    path=(role.state, call),
                    prompt=states[:1],
                    tokens=words[call : call + 1],
                    logprobs=logprobs[call : call + 1],
                    world_rewards={"right": role.pay * float(words[call] == role.state)},
                )
                episode.turns.append(turn)
        episodes.append(episode)
    return episodes


def learn(algorithm: Algorithm, roles: tuple[Role, ...], *, shared: bool, seed: int) -> list[float]:
    """Return how often each role is right after training."""
    random = np.random.default_rng(seed)
    policy = make_policy()
    team = {role.name: policy if shared else make_policy() for role in roles}
    for _ in range(NUM_STEPS):
        episodes = play(team, roles, random)
        algorithm.credit(episodes)
        if shared:
            update(policy, [t for e in episodes for t in e.turns], algorithm, lr=LR)
            continue
        for name, table in team.items():
            update(table, agent_turns(episodes, name), algorithm, lr=LR)
    return [float(team[r.name].probabilities()[r.state, r.state]) for r in roles]


def measure(algorithm: Algorithm, roles: tuple[Role, ...], *, shared: bool) -> list[Mean]:
    """Return how often each role is right, over seeds."""
    runs = [learn(algorithm, roles, shared=shared, seed=seed) for seed in range(NUM_SEEDS)]
    return [over_seeds(rates) for rates in zip(*runs, strict=True)]


def claims() -> Iterator[Claim]:
    """Yield who is right with shared weights and with own ones, which have a fault of their own."""
    what = f"Solver and verifier, {NUM_STEPS} steps of {ATTEMPTS} attempts, {NUM_SEEDS} seeds: "
    paid = f"is paid {WELL_PAID[0].pay:g} times as much"
    speaks = f"speaks {TALKATIVE[0].calls} times as often"
    for algorithm, name, roles, how, shared, captured, why in (
        (Grpo(), "GRPO", WELL_PAID, paid, True, True, "the solver's gradient is the larger one"),
        (Grpo(), "GRPO", WELL_PAID, paid, False, False, "nobody else moves its weights"),
        (DrMas(), "Dr. MAS", WELL_PAID, paid, True, False, "each is measured in its own units"),
        (DrMas(), "Dr. MAS", TALKATIVE, speaks, True, True, "the loss is a mean over all calls"),
        (DrMas(), "Dr. MAS", TALKATIVE, speaks, False, False, "nobody else moves its weights"),
    ):
        solver, verifier = measure(algorithm, roles, shared=shared)
        yield Claim(
            f"{what}how often each is right, from .5, by {name} with "
            f"{'shared' if shared else 'own'} weights; the solver {how}.",
            f"above .95, and {'below .05' if captured else 'above .95'}: {why}",
            f"{solver:.3f} and {verifier:.3f}",
            solver.low > 0.95 and (verifier.high < 0.05 if captured else verifier.low > 0.95),
        )
    yield from own_weights.claims()
