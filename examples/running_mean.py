"""A new algorithm with a critic of its own on one page: the baseline is a running mean of each
agent's scores.

algorithm: examples/running_mean.py:RunningMean
critics: {scores: {}}
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from rolecall import Algorithm, ClippedLoss, Episode
from rolecall.core.credit import Compared
from rolecall.core.types import spread
from rolecall.critics.inputs import CriticInputs


class Scores:
    """Expects of an agent what it earned so far; the newest step counts `newest`."""

    def __init__(self, agents: list[str], newest: float) -> None:
        self.expected, self.newest = dict.fromkeys(agents, 0.0), newest

    async def annotate(self, episodes: list[Episode]) -> None:
        for turn in (turn for episode in episodes for turn in episode.turns):
            turn.training.values = spread(turn, self.expected[turn.agent])

    def learn(self, earned: dict[str, list[float]]) -> None:
        for agent, scores in earned.items():
            gap = float(np.mean(scores)) - self.expected[agent]
            self.expected[agent] += self.newest * gap

    def save(self, folder: Path) -> None:
        (folder / "scores.json").write_text(json.dumps(self.expected))

    def load(self, folder: Path) -> None:
        self.expected = json.loads((folder / "scores.json").read_text())


class RunningMean(ClippedLoss, Algorithm):
    """Advantage: what the turn's agent earned, less what the critic expected of it."""

    critic: ClassVar[str | None] = "scores"
    min_group: ClassVar[int] = 1
    newest: float = Field(0.2, gt=0, le=1)
    """How much of the expectation the newest step replaces."""

    def make_critic(self, parts: CriticInputs) -> Scores:
        return Scores(parts.agents, self.newest)

    def credit(self, episodes: list[Episode]) -> None:
        for episode, turn in self.credited_turns(episodes):
            turn.give_credit(Compared(episode.total(turn), float(turn.training.values[0])))

    def fit(self, episodes: list[Episode], critic: Scores) -> dict[str, float]:
        earned = defaultdict(list)
        for episode, turn in self.credited_turns(episodes):
            earned[turn.agent].append(episode.total(turn))
        critic.learn(earned)
        return {f"expected/{agent}": value for agent, value in critic.expected.items()}
