"""AT-GRPO (2510.11062): a turn is compared with the candidates sampled at that very point.

Degenerate: one candidate has nobody to be compared with and gets 0; a candidate whose world
raised is an error and in no comparison.
"""

from __future__ import annotations

from typing import ClassVar

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import OF_A_TASK, call_key, compare_scores, prompt_key
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.types import Episode, group_by


class AtGrpo(ClippedLoss, Algorithm):
    """Groups are candidates with one prompt; the score is what the turn itself earned."""

    min_group: ClassVar[int] = 1
    compares_candidates: ClassVar[bool] = True
    needs_candidates: ClassVar[bool] = True
    divides: ClassVar[bool] = True
    """Whether scores are divided by the spread of their group."""

    def credit(self, episodes: list[Episode]) -> None:
        """Scores [1.5, 1, .5, 0] of four candidates -> [1.161893, .387298, -.387298, -1.161893]."""
        episode_of = {t.id: e for e, t in self.credited_turns(episodes)}
        turns = [t for e in episodes for t in e.turns if t.id in episode_of]
        for group in group_by(turns, *OF_A_TASK, "agent", "index", "state", prompt_key, call_key):
            compare_scores(
                group,
                [{"own": self.own_reward(episode_of[turn.id], turn)} for turn in group],
                names=(*OF_A_TASK, "agent", "index", "state", "prompt", "call"),
                sample="candidate",
                divide=self.divides,
            )
