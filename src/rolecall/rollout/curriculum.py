"""Keeps pass rates of tasks and computes the weights with which tasks are sampled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from rolecall.config.schema import CurriculumConfig
from rolecall.core.types import Episode, Task


class PassRates:
    """Running pass rates as of each step that a draw may still ask for.

    A step's draw knows the steps before it less the `lag` newest, whether those are finished by
    then or not: so draws are the same however far rollouts run ahead of the updates.
    """

    def __init__(self, config: CurriculumConfig, *, lag: int) -> None:
        """`lag`: updates that a rollout may be behind."""
        self.config, self.lag = config, lag
        self.known: dict[int, dict[str, float]] = {0: {}}  # finished step -> key -> pass rate

    def key(self, task: Task) -> str:
        """Whose pass rate a task shares."""
        if self.config.by == "task":
            return task.id
        return task.family if self.config.by == "family" else f"{task.family}/{task.source}"

    def rate(self, key: str, *, step: int) -> float:
        """Return the pass rate that a draw for `step` may know."""
        return self.known[max(0, step - 1 - self.lag)].get(key, self.config.prior)

    def weight(self, key: str, *, step: int) -> float:
        """Return p (1 - p) + floor: the variance of the outcome, and a minimum for every task."""
        rate = self.rate(key, step=step)
        return rate * (1 - rate) + self.config.floor

    def update(self, step: int, episodes: Iterable[Episode]) -> None:
        """Prior .5, newest .5: a step with scores 1, 1, 1, 0 moves the rate to .625.

        Scores count within 0 and 1; an episode that raised an error says nothing.
        """
        scores: dict[str, list[float]] = defaultdict(list)
        for episode in episodes:
            if episode.error is None:
                score = min(1.0, max(0.0, episode.headline or 0.0))
                scores[self.key(episode.task)].append(score)
        rates = dict(self.known[step - 1])
        for key, values in sorted(scores.items()):
            before = rates.get(key, self.config.prior)
            rates[key] = before + self.config.newest * (fmean(values) - before)
        self.known[step] = rates
        self.known = {s: rates for s, rates in self.known.items() if s >= step - self.lag}

    def state_dict(self) -> dict[str, Any]:
        return {str(step): rates for step, rates in self.known.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.known = {int(step): dict(rates) for step, rates in state.items()}
