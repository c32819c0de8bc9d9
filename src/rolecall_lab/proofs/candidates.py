"""Measures the signal of gradients from candidates of one node, and of mixed ones.

State x in 0..9, reward 10 x + [a = 1]: what the state pays drowns what the action pays, unless a
turn is compared with candidates of its own state (2510.11062).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.grpo import Grpo
from rolecall.core.types import Episode, Task, Turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Table, gradient

NUM_GROUPS, SIZE = 2000, 8
NODES_OF_A_TASK = 10


@dataclass(frozen=True, slots=True)
class Signal:
    """Holds what the groups' gradients on the logit of action 1 have in common."""

    mean: float
    std: float
    right: float  # share of groups whose gradient has the right sign

    @property
    def ratio(self) -> float:
        return self.mean / self.std

    def __str__(self) -> str:
        return f"{self.mean:.3f} / {self.std:.3f} / {self.ratio:.2f} / {self.right:.1%}"


def signal(algorithm: Algorithm, turns: list[list[Turn]], episodes: list[Episode]) -> Signal:
    """Mean and spread over groups [G][K] of the ascent direction, mean over a group's turns.

    The table has a row for each group, so that one backward pass gives every group's gradient.
    """
    algorithm.credit(episodes)
    table = Table([[0.5, 0.5]] * len(turns))
    slopes = -gradient(table, [turn for group in turns for turn in group], algorithm)[:, 1].numpy()
    slopes = slopes * len(turns)
    return Signal(float(slopes.mean()), float(slopes.std()), float((slopes > 0).mean()))


def _turn(group: int, k: int, x: int, *, action: int, task: str, episode: str) -> Turn:
    return Turn(
        id=f"{group}/{k}",
        task=task,
        episode=episode,
        agent="solver",
        policy="solver",
        path=(0, k),
        prompt=np.array([x, group], dtype=np.int32),
        tokens=np.array([action], dtype=np.int32),
        logprobs=np.full(1, np.log(0.5), dtype=np.float32),
        state=str(x),
        candidate=k,
        chosen=k == 0,
        rewards={"world": 10.0 * x + action},
    )


def per_node(*, seed: int) -> Signal:
    """AT-GRPO: a group is the candidates drawn at one node; a task has several nodes."""
    random = np.random.default_rng(seed)
    turns: list[list[Turn]] = []
    episodes: list[Episode] = []
    for group in range(NUM_GROUPS):
        task, x = f"{group // NODES_OF_A_TASK}", int(random.integers(10))
        turns.append(
            [
                _turn(group, k, x, action=int(a), task=task, episode=str(group))
                for k, a in enumerate(random.integers(2, size=SIZE))
            ]
        )
        episodes.append(Episode(str(group), Task(task, ""), group, group, turns[-1]))
    return signal(AtGrpo(), turns, episodes)


def mixed_states(*, seed: int) -> Signal:
    """GRPO: a group is the attempts at a task, each of which met a state of its own."""
    random = np.random.default_rng(seed)
    turns: list[list[Turn]] = []
    episodes: list[Episode] = []
    for group in range(NUM_GROUPS):
        task, states = str(group), random.integers(10, size=SIZE).tolist()
        turns.append([])
        for k, (x, action) in enumerate(zip(states, random.integers(2, size=SIZE), strict=True)):
            turn = _turn(group, k, x, action=int(action), task=task, episode=f"{group}:{k}")
            turn.chosen = True
            turns[-1].append(turn)
            episodes.append(Episode(turn.episode, Task(task, ""), k, k, [turn]))
    return signal(Grpo(), turns, episodes)


def claims() -> Iterator[Claim]:
    """Yield claims whose tolerances are three standard errors of 2000 groups."""
    what = "10 x + [a = 1]: mean / std / ratio / right sign of the gradient, "
    pooled = mixed_states(seed=0)
    yield Claim(
        what + "states mixed in a group.",
        "0.004 / 0.164 / 0.03 / 51 %, +- 0.011 / 0.01 / 0.07 / 3.4 %",
        str(pooled),
        _near(pooled, Signal(0.004, 0.164, 0.51), mean=0.011, std=0.01, right=0.034)
        and abs(pooled.ratio - 0.03) <= 0.07,
    )
    apart = per_node(seed=0)
    yield Claim(
        what + "AT-GRPO's groups of one node.",
        "0.432 / 0.057 / 7.6 / 99 %, +- 0.004 / 0.01 / 1.0 / 1 %",
        str(apart),
        _near(apart, Signal(0.432, 0.057, 0.99), mean=0.004, std=0.01, right=0.01)
        and abs(apart.ratio - 7.6) <= 1.0,
    )


def _near(measured: Signal, expected: Signal, *, mean: float, std: float, right: float) -> bool:
    return (
        abs(measured.mean - expected.mean) <= mean
        and abs(measured.std - expected.std) <= std
        and abs(measured.right - expected.right) <= right
    )
