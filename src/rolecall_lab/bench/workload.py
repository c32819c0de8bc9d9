"""Draws from a seed who says how much to whom in a talk, with random tokens as the texts.

A task has 120 tokens. A solver writes about 60 (exponential, 8 to 128); a verifier reads the task,
the solution and 40 more tokens and writes about 24 (8 to 64); in every second episode the solver
speaks again after reading all of it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from rolecall.core.types import Ids

VOCABULARY = 128
TASK, INSTRUCTION = 120, 40  # tokens
SOLUTION, VERDICT = (60, 8, 128), (24, 8, 64)  # mean, fewest, most
AGENTS = ("solver", "verifier", "solver")  # who says the first, second and third turn
SEED = 0


@dataclass(frozen=True, slots=True)
class TeamSize:
    """A rollout of a team."""

    model: str  # a size in small_models.py
    tasks: int
    samples: int  # episodes of each task
    dtype: str = "float32"  # of the weights
    trains: bool = False  # each run begins with new weights, and log-probs are asked for

    @property
    def episodes(self) -> int:
        return self.tasks * self.samples


# A talk yields the prompt of a call and how many tokens are to be said, and is sent what was said.
Talk = Generator[tuple[Ids, int], Ids, None]


def lengths(episodes: int) -> list[tuple[int, ...]]:
    """Ids of each turn of each episode, the same in every run: [(61, 12), (33, 40, 92), ...]."""
    random = np.random.default_rng(SEED)
    solutions = _exponential(random, episodes, *SOLUTION)
    verdicts = _exponential(random, episodes, *VERDICT)
    revisions = _exponential(random, episodes, *SOLUTION)
    again = set(random.permutation(episodes)[: episodes // 2].tolist())
    whole = zip(solutions, verdicts, revisions, strict=True)
    return [turns if number in again else turns[:2] for number, turns in enumerate(whole)]


def talks(size: TeamSize, run: int) -> list[Talk]:
    """Every episode's talk, a task's one after another; each run has tasks of its own.

    Otherwise an engine that remembers prompts would find those of the run before.
    """
    random = np.random.default_rng([SEED, run])
    tasks, instruction = random_ids(random, size.tasks, TASK), random_ids(random, 1, INSTRUCTION)[0]
    return [
        _talk(tasks[number // size.samples], instruction, turns)
        for number, turns in enumerate(lengths(size.episodes))
    ]


def random_ids(random: np.random.Generator, rows: int, length: int) -> Ids:
    """[rows, length]"""
    return random.integers(0, VOCABULARY, (rows, length), dtype=np.int32)


def _talk(task: Ids, instruction: Ids, turns: tuple[int, ...]) -> Talk:
    heard = task
    for number, length in enumerate(turns):
        answer = yield heard, length
        heard = np.concatenate([heard, answer, instruction] if number == 0 else [heard, answer])


def _exponential(
    random: np.random.Generator, count: int, mean: int, fewest: int, most: int
) -> list[int]:
    return random.exponential(mean, count).clip(fewest, most).astype(int).tolist()
