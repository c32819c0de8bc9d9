"""REINFORCE with the role-conditioned baseline of SPIRAL (2506.24119), for self-play.

A payoff is compared with what its seat of the game has earned so far, as a moving average. In a
zero-sum game the attempts of a group, both seats together, earn 0 by construction: their mean
knows nothing of a seat's luck. Degenerate: a constant payoff is worth itself at first and 0 in
the limit, since averages start at 0.
"""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from pydantic import Field, PrivateAttr

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import exact_mean
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.credit import Compared
from rolecall.core.json_types import State
from rolecall.core.types import Episode, Turn, group_by

Key = tuple[str, str]  # source of the task, and seat


class ReinforceBaseline(ClippedLoss, Algorithm):
    """An average for each (source, seat), read before it is moved, game by game.

    A seat is what the workflow wrote in `turn.seat`, else the agent.
    """

    min_group: ClassVar[int] = 1

    decay: float = Field(0.95, ge=0, lt=1)
    """What is left of an average after another game; SPIRAL's 0.95 remembers about 20 games."""
    _averages: dict[Key, float] = PrivateAttr(default_factory=dict)
    _moved: dict[Key, float] = PrivateAttr(default_factory=dict)  # by the episodes of this step

    def credit(self, episodes: list[Episode]) -> None:
        """Payoffs 1, 1, -1 of one seat, decay .5: averages 0, .5, .75, so 1, .5, -1.75.

        A game of which a seat has several turns is one game; they share the average before it.
        """
        turns: dict[str, list[Turn]] = defaultdict(list)
        for episode, turn in self.credited_turns(episodes):
            turns[episode.id].append(turn)
        self._moved = dict(self._averages)
        for episode in sorted(episodes, key=lambda episode: episode.id):
            for group in group_by(turns[episode.id], seat_key):
                key = episode.task.source, seat_key(group[0])
                average = self._moved.get(key, 0.0)
                scores = []
                for turn in group:
                    outcome, own = episode.outcome(turn.agent), self.own_reward(episode, turn)
                    scores.append(outcome + own)
                    term = Compared(
                        outcome + own, average, 1, {"outcome": outcome, "own": own},
                        {"source": key[0], "seat": key[1]}, "episode_agent",
                        baseline="moving_average",
                    )  # fmt: skip
                    turn.give_credit(term)
                self._moved[key] = self.decay * average + (1 - self.decay) * exact_mean(scores)

    def after_step(self, step: int) -> None:
        self._averages = dict(self._moved)

    def metrics(self) -> dict[str, float]:
        return {f"average/{source}/{seat}": v for (source, seat), v in self._averages.items()}

    def state_dict(self) -> State:
        return {"averages": [[*key, value] for key, value in sorted(self._averages.items())]}

    def load_state_dict(self, state: State) -> None:
        self._averages = {(source, seat): value for source, seat, value in state["averages"]}
        self._moved = dict(self._averages)


def seat_key(turn: Turn) -> str:
    return turn.seat or turn.agent
