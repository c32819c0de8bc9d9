"""SFT: imitate demonstrations of a file, or the turns of one's own best episodes.

A wrong step is not imitated, but stays in what later ones were shown, so that the reflection after
it is learned (STeP, 2505.20023). Rows of a file say `weight: 0` on such messages, or on parts of
one.

Known answer: log-probs -1, -2, -3, -4 of one imitated turn give a loss of 2.5, and of two turns of
two tokens, of which the first is wrong, 3.5.
Degenerate: a step in which no score reaches the threshold is no update.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rolecall.algorithms.base import Algorithm, Rows
from rolecall.algorithms.best_of import best_attempts, is_right
from rolecall.algorithms.losses import ImitationLoss
from rolecall.core.credit import Imitated, LeftOut
from rolecall.core.types import Episode, Turn


class Sft(ImitationLoss, Algorithm):
    """The tokens of a turn that was good enough grow more likely; all other turns are left out.

    With rows of a file (`rollout.data`) this is a supervised warm start, with sampled episodes
    it is rejection-sampling fine-tuning.
    """

    min_group: ClassVar[int] = 1
    takes_data: ClassVar[Rows | None] = "demonstrations"

    threshold: float = Field(1.0, ge=-1e9, le=1e9)
    """Least score of an episode, for the agent that speaks, whose turns are imitated. Rows of a
    file have the score 1."""
    best_of: int | None = Field(None, ge=1, le=100_000)
    """Imitate only this many attempts at each task: those in which the agent earned most."""
    step_threshold: float | None = Field(None, ge=-1e9, le=1e9)
    """Least own reward of a turn that is imitated; the world, a coach or a penalty gives it, and a
    turn without one counts as right. `threshold` is then the least outcome alone."""

    def credit(self, episodes: list[Episode]) -> None:
        """Advantage 1 on every token that is imitated and 0 on all others."""
        turns = self.credited_turns(episodes)
        attempts = turns if self.best_of is None else best_attempts(turns, self.best_of)
        best = {turn.id for _, turn in attempts}
        for episode, turn in turns:
            if turn.id not in best:
                reason = f"its attempt is not among the {self.best_of} best of {turn.agent}"
                turn.give_credit(LeftOut(reason, is_dropped=False))
            elif self._is_imitated(episode, turn):
                amounts = {"outcome": episode.outcome(turn.agent), "own": turn.score}
                turn.give_credit(Imitated(episode.total(turn), amounts, self.threshold))
            else:
                reason = f"it earned less than the threshold {self.threshold:g}"
                turn.give_credit(LeftOut(reason, is_dropped=False))

    def _is_imitated(self, episode: Episode, turn: Turn) -> bool:
        if self.step_threshold is None:
            return episode.total(turn) >= self.threshold
        right = is_right(turn, self.step_threshold)
        return right and episode.outcome(turn.agent) >= self.threshold
