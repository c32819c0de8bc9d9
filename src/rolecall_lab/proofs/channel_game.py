"""Measures whether a pioneer learns to speak for its observer, with CORY's shared reward and alone.

The pioneer says 0 or 1 and earns nothing; the observer, who is told it, earns 1 where both said 1.
Only a reward that the two share says to the pioneer that its words were of use (2410.06101).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.cory import Cory
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import (
    Doubles,
    Ints,
    Table,
    agent_turns,
    make_episodes,
    table_logprobs,
    update,
    value,
)

NUM_STEPS, NUM_SAMPLES, LEARNING_RATE = 80, 64, 0.5
NUM_SEEDS = 2
KL = 1e-3  # the game pays at most 1: under the published .4 the reference would hold both back
LEARNED = 0.99  # in every seed; the lowest of four measured ones had .9949


def paid(actions: Ints, *, shared: bool) -> dict[str, Doubles]:
    """Return what joint actions [N, 2] earn: [N] for each agent."""
    right = (actions.prod(axis=1) == 1).astype(np.float64)
    return {"pioneer": right if shared else np.zeros(len(right)), "observer": right}


def channel_game(*, shared: bool, seed: int) -> tuple[float, float]:
    """P(a1 = 1) and the expected reward of the observer at the end."""
    random = np.random.default_rng(seed)
    team = {"pioneer": Table([[0.5, 0.5]]), "observer": Table([[0.5, 0.5]] * 2)}
    references = {"pioneer": Table([[0.5, 0.5]]), "observer": Table([[0.5, 0.5]] * 2)}
    algorithm = Cory(kl=KL, epochs=1)
    nothing = np.zeros(NUM_SAMPLES, dtype=np.int32)
    for step in range(NUM_STEPS):
        first = team["pioneer"].sample(nothing, random)
        actions = np.stack([first, team["observer"].sample(first, random)], axis=1)
        seen = np.stack([nothing, first], axis=1)
        earned = paid(actions, shared=shared)
        episodes = make_episodes(team, actions, earned, states=seen, in_turn=True)
        for agent, table in team.items():
            turns = agent_turns(episodes, agent)
            value(turns, table.values.detach().numpy()[[turn.ids[0][-1] for turn in turns]])
            for turn, logprobs in zip(turns, table_logprobs(references[agent], turns), strict=True):
                turn.training.ref_logprobs = logprobs
        algorithm.credit(episodes)
        for agent, table in team.items():
            update(table, agent_turns(episodes, agent), algorithm, lr=LEARNING_RATE)
        algorithm.after_step(step)
    p_one = float(team["pioneer"].probabilities()[0, 1])
    return p_one, p_one * float(team["observer"].probabilities()[1, 1])


def claims() -> Iterator[Claim]:
    """Yield claims with the reward that `pioneer_observer` pays, and with each agent's own."""
    what = f"Channel game, {NUM_STEPS} steps of {NUM_SAMPLES} samples by CORY: P(a1 = 1) and E r, "
    both = [channel_game(shared=True, seed=seed) for seed in range(NUM_SEEDS)]
    yield Claim(
        what + "shared reward.",
        f"> {LEARNED} and > {LEARNED} in every seed",
        _shown(both),
        min(min(result) for result in both) > LEARNED,
    )
    alone = [channel_game(shared=False, seed=seed) for seed in range(NUM_SEEDS)]
    yield Claim(
        what + "rewards of their own.",
        "exactly .5, and at most .5",
        _shown(alone),
        all(p_one == 0.5 and earned <= 0.5 for p_one, earned in alone),
    )


def _shown(results: list[tuple[float, float]]) -> str:
    return ", ".join(f"{p_one:.4f} and {earned:.4f}" for p_one, earned in results)
