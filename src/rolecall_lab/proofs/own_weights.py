"""Measures how a verifier with weights of its own peaks and falls while its solver learns.

A solver says one of two words, 5 % of the time the right one at first; a verifier hears the word
and approves or rejects it. Each is paid for being right itself. Its prompts for right and wrong
words share seven tenths of a step, so once the solver makes no errors the verifier learns to
approve whatever it hears. It keeps what it knew if the solver's first weights play half of the
attempts, as an opponent pool lets them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.drmas import DrMas
from rolecall.core.types import Episode
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import (
    Table,
    agent_turns,
    make_episodes,
    overlap_states,
    update,
)
from rolecall_lab.seeds import over_seeds

WRONG, RIGHT = 0, 1  # words of the solver, which are states of the verifier; it rejects or approves
START = (0.95, 0.05)  # of the solver
SHARE = 0.7  # of a step for one state that moves the other too
NUM_STEPS, ATTEMPTS, LR = 150, 64, 0.5
NUM_SEEDS = 5


def play(
    solver: Table, verifier: Table, random: np.random.Generator, *, start: int
) -> list[Episode]:
    """Play half of a step's attempts; `start` is the number of the first."""
    nothing = np.zeros(ATTEMPTS // 2, dtype=np.int32)
    words = solver.sample(nothing, random)
    verdicts = verifier.sample(words, random)
    return make_episodes(
        {"solver": solver, "verifier": verifier},
        np.stack([words, verdicts], axis=1),
        {"solver": words.astype("f8"), "verifier": (verdicts == words).astype("f8")},
        states=np.stack([nothing, words], axis=1),
        attempts=ATTEMPTS,
        start=start,
        in_turn=True,
    )


def learn(*, keep_first: bool, seed: int) -> list[float]:
    """Return after each step how often the verifier rejects a wrong word."""
    random = np.random.default_rng(seed)
    solver, first, verifier = Table([START]), Table([START]), Table([[0.5, 0.5]] * 2)
    overlap_states(verifier, (WRONG, RIGHT), SHARE)
    algorithm = DrMas()
    rates = []
    for _ in range(NUM_STEPS):
        episodes = play(first if keep_first else solver, verifier, random, start=0)
        for turn in agent_turns(episodes, "solver"):
            turn.trained = not keep_first
        episodes += play(solver, verifier, random, start=ATTEMPTS // 2)
        algorithm.credit(episodes)
        update(solver, [t for t in agent_turns(episodes, "solver") if t.trained], algorithm, lr=LR)
        update(verifier, agent_turns(episodes, "verifier"), algorithm, lr=LR)
        rates.append(float(verifier.probabilities()[WRONG, WRONG]))
    return rates


def claims() -> Iterator[Claim]:
    """Yield how often wrong words are rejected, at best and at the end."""
    what = (
        f"A solver that learns and its verifier, own weights, {NUM_STEPS} steps of {ATTEMPTS} "
        f"attempts by Dr. MAS, {NUM_SEEDS} seeds: how often a wrong word is rejected, at best and "
        "at the end, "
    )
    for keep_first, who, expected in (
        (False, "while the solver's newest weights play.", "above .8, and below .2"),
        (True, "while its first weights play half of the attempts.", "above .8, and above .8"),
    ):
        runs = [learn(keep_first=keep_first, seed=seed) for seed in range(NUM_SEEDS)]
        peak, end = over_seeds([max(run) for run in runs]), over_seeds([run[-1] for run in runs])
        yield Claim(
            what + who,
            expected,
            f"{peak:.3f} and {end:.3f}",
            peak.low > 0.8 and (end.low > 0.8 if keep_first else end.high < 0.2),
        )
