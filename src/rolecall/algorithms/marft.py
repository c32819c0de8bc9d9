"""MARFT (2504.16129), action mode: agents act in turn, and each has a value given who has spoken.

The whole utterance is one action with one ratio. Advantages are chained over the turns of all
agents, so that they add up to what the team earned beyond its first value. Degenerate: gamma = lam
= 1 gives A = G - V.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from rolecall.algorithms.losses import Aggregation, per_turn
from rolecall.algorithms.mappo import Mappo
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.round_robin import RoundRobin
from rolecall.core.types import Batch, Episode, Turn
from rolecall.critics.transcript import StepsOf


def single_steps(episode: Episode) -> list[list[Turn]]:
    """Return the played turns in order, each as its own step, even if agents spoke at once."""
    return [[turn] for turn in episode.turns if turn.chosen]


class MarftLoss(ClippedLoss):
    """APPO's loss: an utterance is one action with one ratio, and counts one."""

    agg: ClassVar[Aggregation] = "turn_sum"  # type: ignore[misc]
    turn_length: ClassVar[int | None] = 1  # type: ignore[misc]

    ratio: Literal["none", "token", "word"] = "none"
    """How the log-ratio of an utterance is normalised: the sum over its tokens, that divided by
    their number, or by the number of its words, which are what spaces and line ends separate."""

    def objective(
        self, logprobs: Tensor, anchor: Tensor, advantages: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return C(rho, A) of whole utterances, a share of it on each of their tokens.

        The value of a token is C / T; its gradient that of C by its own log-prob. Log-ratios .1, .2
        and .3 of the two words "be it": rho exp(.6), by tokens exp(.2), by words exp(.3).
        """
        mask = torch.from_numpy(batch.mask).to(logprobs.device)
        lengths = per_turn(mask, batch).clamp(min=1.0)
        turn = torch.from_numpy(batch.turn).long().to(logprobs.device)
        share = lengths[turn]
        words = torch.from_numpy(batch.words).to(logprobs).clamp(min=1.0)
        parts = {"none": torch.ones_like(share), "token": share, "word": words}[self.ratio]
        moved = per_turn((logprobs.detach() - anchor) * mask, batch)[turn] / parts
        own = (logprobs - logprobs.detach()) * (share / parts)
        gains, clipped = super().objective(moved + own, torch.zeros_like(anchor), advantages, batch)
        return gains / share, clipped


class Marft(MarftLoss, RoundRobin, Mappo):
    """MAPPO over single turns, with APPO's loss: values [.5, .6, .4, .8], outcome 1, gamma .99 ->
    [.41526, .341584, .5801, .2].
    """

    steps_of: ClassVar[StepsOf] = staticmethod(single_steps)

    epochs: int = Field(1, ge=1, le=1000)

    def credit(self, episodes: list[Episode]) -> None:
        super().credit(episodes)
        self.leave_out_others([t for e in episodes for t in e.turns if t.advantages is not None])
