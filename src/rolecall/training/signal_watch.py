"""Notices agents that have nothing to learn from while others of the team are trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rolecall.core.types import Turn


class SignalWatch:
    """Counts, for each agent, steps in a row in which none of its turns had a signal."""

    def __init__(self, agents: Iterable[str], *, patience: int) -> None:
        self.idle = dict.fromkeys(agents, 0)
        self.patience = patience

    def after_step(self, turns: Iterable[Turn]) -> list[str]:
        """Return the agents whose count reaches `patience` in this step."""
        trained = {
            turn.agent for turn in turns if turn.advantages is not None and np.any(turn.advantages)
        }
        for agent in self.idle:
            self.idle[agent] = 0 if agent in trained else self.idle[agent] + 1
        return [agent for agent, steps in self.idle.items() if steps == self.patience]
