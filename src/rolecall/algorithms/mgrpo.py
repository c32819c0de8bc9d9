"""M-GRPO (2511.13288): one main agent, and sub-agents that are called any number of times.

Every agent is compared with itself over the rollouts of a task; the calls of a rollout share its
weight. The paper repeats or drops calls at random until each rollout has equally many; a weight
has the same mean and no luck in it. Who is called once in each rollout, as the main agent, is
compared as in GRPO, whatever others do. Degenerate: who was called in one rollout alone gets 0.
"""

from __future__ import annotations

import math

from pydantic import Field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import OF_A_TASK, describe_key, exact_mean
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.credit import Amounts, Compared
from rolecall.core.types import Episode, Turn, calls, group_by


class MGrpo(ClippedLoss, Algorithm):
    """Mean, spread and loss in which a rollout counts the same however often it called."""

    clip_high: float = Field(0.28, ge=0, le=1000)
    calls: int | None = Field(1, ge=1, le=1_000_000)
    """As how many calls of an agent a rollout counts in mean and spread, however many it made;
    null: every call is one, and rollouts that call more often count more, in the loss too."""

    @property
    def read_by_credit(self) -> frozenset[str]:
        return super().read_by_credit | {"agg"}  # weights depend on it

    def credit(self, episodes: list[Episode]) -> None:
        """One call worth 1 in a rollout, three worth 0 in another, calls 2 -> .866, -.866 (three
        times, each with a third of the first one's weight).
        """
        made_of: dict[str, Amounts] = {
            turn.id: {
                "outcome": episode.outcome(turn.agent),
                "own": self.own_reward(episode, turn),
            }
            for episode, turn in self.credited_turns(episodes)
        }
        turns = [turn for episode in episodes for turn in episode.turns if turn.id in made_of]
        for group in group_by(turns, *OF_A_TASK, "agent"):
            self._compare(group, made_of)
        if self.calls is not None:
            for spoken in group_by(turns, "agent"):
                self._weigh(spoken)

    def _compare(self, group: list[Turn], made_of: dict[str, Amounts]) -> None:
        total = {turn.id: sum(made_of[turn.id].values()) for turn in group}
        scores, weights = [], []
        for rollout in group_by(group, "episode"):
            per_call = calls(rollout)
            scores += [exact_mean([total[turn.id] for turn in call]) for call in per_call]
            weights += [1.0 if self.calls is None else self.calls / len(per_call)] * len(per_call)
        count = round(math.fsum(weights))
        if count < 2 or max(scores) == min(scores):
            return
        mean = math.fsum(w * s for w, s in zip(weights, scores, strict=True)) / count
        squares = math.fsum(w * (s - mean) ** 2 for w, s in zip(weights, scores, strict=True))
        std = math.sqrt(squares / (count - 1))
        for turn in group:
            term = Compared(
                total[turn.id], mean, count, made_of[turn.id],
                describe_key(turn, (*OF_A_TASK, "agent")), "call", std=std,
            )  # fmt: skip
            turn.give_credit(term)

    def _weigh(self, spoken: list[Turn]) -> None:
        """1 / calls of the rollout, times what keeps the sum over tokens (or turns) as it is."""
        share = {
            turn.id: 1 / len(per_call)
            for per_call in map(calls, group_by(spoken, "episode"))
            for call in per_call
            for turn in call
        }
        size = {turn.id: len(turn.ids[1]) if self.agg == "token" else 1 for turn in spoken}
        scale = sum(size.values()) / math.fsum(size[name] * share[name] for name in share)
        for turn in spoken:
            turn.weight = share[turn.id] * scale
