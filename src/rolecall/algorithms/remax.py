"""ReMax (2310.10505): the baseline of an attempt is what the greedy answer to its task earns.

For each task the team is played once more at temperature 0, which is not trained on. Degenerate:
an attempt that earns what the greedy one does gets exactly 0; where the greedy play fails, the
attempts are compared as in RLOO.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PrivateAttr

from rolecall.algorithms.base import Replay
from rolecall.algorithms.counterfactual import agent_return
from rolecall.algorithms.groups import Count, Level, compare
from rolecall.algorithms.rloo import Rloo
from rolecall.core.credit import Replayed
from rolecall.core.types import GREEDY, Episode, Group


class ReMax(Rloo):
    """A = outcome - outcome of the greedy play; a whole utterance is one action."""

    min_group: ClassVar[int] = 1
    mean: ClassVar[Level] = "agent"  # type: ignore[misc]
    std: ClassVar[Literal["none"]] = "none"  # type: ignore[misc]
    count: ClassVar[Count] = "episode_agent"  # type: ignore[misc]
    _greedy: list[float] = PrivateAttr(default_factory=list)
    _failed: int = PrivateAttr(default=0)

    async def prepare(self, group: Group, replay: Replay) -> None:
        """Play the task greedily once, and note on each turn what its agent earned there."""
        greedy = await replay(group[0], GREEDY)
        for episode in group:
            for turn in episode.turns:
                if not (turn.trained and turn.chosen and turn.tokens is not None):
                    continue
                if greedy.error is not None:
                    turn.training.replay_error = greedy.error
                else:
                    turn.training.replayed = agent_return(greedy, turn.agent)

    def credit(self, episodes: list[Episode]) -> None:
        """Rewards [1, 0, 0], greedy 1 -> [0, -1, -1] on every token of the attempts."""
        turns = self.credited_turns(episodes)
        compare(
            turns, mean=self.mean, std=self.std, count=self.count, own=self.own_reward,
            several=False, baseline=type(self).baseline,
        )  # fmt: skip
        self._greedy, self._failed = [], 0
        for episode, turn in turns:
            self._failed += bool(turn.training.replay_error)
            if turn.training.replayed is not None:
                self._greedy.append(turn.training.replayed)
                earned = agent_return(episode, turn.agent)
                # What the world or the workflow paid for this turn is in both returns.
                paid = sum(turn.world_rewards.values()) + (turn.paid or 0.0)
                own = self.own_reward(episode, turn) - paid
                turn.reset_credit()
                turn.give_credit(Replayed(earned, turn.training.replayed, own, by="greedy"))

    def metrics(self) -> dict[str, float]:
        """Return the mean return of the greedy plays, and turns whose greedy play failed."""
        if not self._greedy:
            return {}
        mean = sum(self._greedy) / len(self._greedy)
        return {"greedy_return": mean, "failed_replays": float(self._failed)}
