"""HAPPO (2109.11251): policies are updated one after another, each against the others' new ones.

A waiting policy's turn weighs what the updated ones changed around it, M = product of pi_new /
pi_old over their turns. Degenerate: one policy is MAPPO; a policy that did not move gives M = 1.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import PrivateAttr

from rolecall.algorithms.mappo import Mappo
from rolecall.core.types import Episode, Turn
from rolecall.runtime.turn_order import rounds


class Happo(Mappo):
    """MAPPO with the sequential factor M in `turn.weight`."""

    one_policy_at_a_time: ClassVar[bool] = True

    factor: Literal["round", "before", "episode"] = "round"
    """Which updated turns count: those of the same round, in which an agent speaks at most once
    (the joint step of the paper), all that are not descendants of the turn, or all of the
    episode."""
    ratio: Literal["sequence", "geometric"] = "sequence"
    """Exact product over tokens, or mean per token: biased, but it stays near 1 for long turns."""
    clamp: bool = True
    """Keep M in [0.5, 2]."""
    _updated: list[str] = PrivateAttr(default_factory=list)
    _clamped: int = PrivateAttr(default=0)

    @property
    def read_by_credit(self) -> frozenset[str]:
        return super().read_by_credit | {"anchor"}

    def credit(self, episodes: list[Episode]) -> None:
        super().credit(episodes)
        self._updated, self._clamped = [], 0

    def after_update(self, policy: str, episodes: list[Episode]) -> None:
        """Token log-ratios .1, .1, -.05 of one updated turn: M 1.161834, geometric 1.051271."""
        self._updated.append(policy)
        for episode in episodes:
            moved = [turn for turn in episode.turns if self._moved(turn)]
            round_of = {t.id: n for n, turns in enumerate(rounds(episode)) for t in turns}
            for turn in episode.turns:
                if turn.policy not in self._updated and turn.chosen:
                    around = [u for u in moved if self._counts(u, turn, episode, round_of)]
                    together = min(20.0, max(-20.0, sum(map(self.log_ratio, around))))
                    turn.weight = self._bounded(math.exp(together))

    def metrics(self) -> dict[str, float]:
        return {"clamped_factors": float(self._clamped)}

    def log_ratio(self, turn: Turn) -> float:
        """Return log pi_new(u) / pi_anchor(u), over all tokens or per token."""
        old = turn.training.prox_logprobs if self.anchor == "learner" else turn.logprobs
        assert old is not None, f"turn {turn.id} has no log-probs of before"
        assert turn.training.new_logprobs is not None, f"turn {turn.id} has no log-probs of after"
        d = turn.training.new_logprobs.astype(np.float64) - old
        ratio = d.sum() if self.ratio == "sequence" else d.mean()
        return float(np.clip(ratio, -20.0, 20.0))

    def _moved(self, turn: Turn) -> bool:
        return (
            turn.policy in self._updated and turn.chosen and turn.training.new_logprobs is not None
        )

    def _counts(
        self, updated: Turn, waiting: Turn, episode: Episode, round_of: dict[str, int]
    ) -> bool:
        if self.factor == "round":
            return round_of[updated.id] == round_of[waiting.id]
        return self.factor == "episode" or not _descends(updated, waiting, episode)

    def _bounded(self, factor: float) -> float:
        if not self.clamp or 0.5 <= factor <= 2.0:
            return factor
        self._clamped += 1
        return min(2.0, max(0.5, factor))


def _descends(turn: Turn, ancestor: Turn, episode: Episode) -> bool:
    """Return whether `turn` was told, directly or through others, what `ancestor` said."""
    by_id = {t.id: t for t in episode.turns}
    seen, queue = set(), list(turn.parents)
    while queue:
        parent = queue.pop()
        if parent not in seen and parent in by_id:
            seen.add(parent)
            queue += by_id[parent].parents
    return ancestor.id in seen
