"""DAPO (2503.14476): clip higher, sample tasks until there is signal, mean over tokens.

Degenerate: a group whose owners all earned the same in every attempt is filtered out.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import Aggregation
from rolecall.core.types import Episode, Group, Turn


class Dapo(Grpo):
    """GRPO on groups that can teach something."""

    filters_groups: ClassVar[bool] = True

    clip_high: float = Field(0.28, ge=0, le=1000)
    agg: Aggregation = "token"
    longest: int | None = Field(None, ge=1, le=10_000_000)
    """Ids from which a turn pays the whole length penalty of 1; by default the largest
    max_tokens of the team."""
    length_cache: int | None = Field(None, ge=0, le=10_000_000)
    """Ids below `longest` at which the penalty begins; by default a fifth of it."""

    def keep_group(self, group: Group) -> bool:
        """Keep groups with both right and wrong attempts, whatever the lengths: [1, 1, 1, 0], not
        [1, 1, 1, 1].
        """
        owners = {owner for episode in group for owner in episode.rewards}
        varied = any(
            len({episode.rewards.get(owner, 0.0) for episode in group}) > 1 for owner in owners
        )
        # Where the workflow pays turns itself, that is their outcome.
        paid = {
            tuple((turn.agent, turn.paid) for turn in episode.turns if turn.paid is not None)
            for episode in group
        }
        return varied or len(paid) > 1

    def own_reward(self, episode: Episode, turn: Turn) -> float:
        assert self.longest is not None, "the config fills in the longest turn"
        cache = self.longest // 5 if self.length_cache is None else self.length_cache
        penalty = length_penalty(len(turn.ids[1]), longest=self.longest, cache=cache)
        return super().own_reward(episode, turn) + penalty


def length_penalty(length: int, *, longest: int, cache: int) -> float:
    """Return 0 up to longest - cache, then a penalty that falls to -1 at `longest`.

    longest 20480, cache 4096: 16384 -> 0, 17408 -> -.25, 20480 and beyond -> -1.
    """
    if length >= longest:
        return -1.0
    return -max(0.0, length - (longest - cache)) / cache if cache else 0.0
