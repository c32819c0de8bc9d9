"""Measures what DPO makes of three answers, the last of which is preferred to the others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.dpo import Dpo
from rolecall.core.types import Turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import (
    Table,
    agent_turns,
    backward,
    gradient,
    make_episodes,
    pack_turns,
    table_logprobs,
    update,
)

LEARNING_RATE, NUM_STEPS = 5.0, 200
BEST = 2


def siblings(table: Table, algorithm: Dpo) -> list[Turn]:
    """Every answer once; the best earned 1, the others 0, so that there are two pairs."""
    actions = np.arange(3, dtype=np.int32)[:, None]
    episodes = make_episodes({"solver": table}, actions, {"team": np.array([0.0, 0.0, 1.0])})
    turns = agent_turns(episodes, "solver")
    for turn, logprobs in zip(turns, table_logprobs(table, turns), strict=True):
        turn.training.ref_logprobs = logprobs
    algorithm.credit(episodes)
    return turns


def claims() -> Iterator[Claim]:
    """Yield claims at the reference, and after 200 steps."""
    algorithm = Dpo(pair_up="all", epochs=NUM_STEPS)
    table = Table([[1 / 3] * 3])
    turns = siblings(table, algorithm)
    batches = pack_turns(turns, algorithm)
    loss = backward(table, batches, algorithm)
    yield Claim(
        "DPO at the reference: the loss is ln 2.",
        "0.693147",
        f"{loss:.6f}",
        abs(loss - math.log(2)) < 1e-6,
    )
    first = gradient(table, turns, algorithm)[0].tolist()
    expected = [0.025, 0.025, -0.05]
    yield Claim(
        "DPO, the best of three answers against each other: the first gradient on the logits.",
        str(expected),
        str([round(x, 6) for x in first]),
        max(abs(a - b) for a, b in zip(first, expected, strict=True)) < 1e-6,
    )
    update(table, turns, algorithm, lr=LEARNING_RATE)
    best, loss = float(table.probabilities()[0, BEST]), backward(table, batches, algorithm)
    yield Claim(
        f"The same after {NUM_STEPS} SGD steps at lr {LEARNING_RATE:g}: P(best) and the loss.",
        "1.000 and 0.072",
        f"{best:.4f} and {loss:.4f}",
        round(best, 3) == 1.0 and round(loss, 3) == 0.072,
    )
