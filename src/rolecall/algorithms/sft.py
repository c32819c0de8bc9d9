"""SFT: imitate demonstrations of a file, or the turns of one's own best episodes.

Known answer: log-probs -1, -2, -3, -4 of one imitated turn give a loss of 2.5.
Degenerate: a step in which no score reaches the threshold is no update.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from rolecall.algorithms.base import OF_CLIPPED_LOSS, Algorithm, Rows
from rolecall.interfaces.algorithm import Loss, Outputs
from rolecall.types import Batch, Episode, spread


class Sft(Algorithm):
    """The tokens of a turn that was good enough grow more likely; all other turns are left out.

    With rows of a file (`rollout.data`) this is a supervised warm start, with sampled episodes
    it is rejection-sampling fine-tuning.
    """

    min_group: ClassVar[int] = 1
    takes_data: ClassVar[Rows | None] = "demonstrations"
    without_effect: ClassVar[tuple[str, ...]] = OF_CLIPPED_LOSS
    in_credit: ClassVar[frozenset[str]] = frozenset({"threshold"})

    threshold: float = Field(1.0, ge=-1e9, le=1e9)
    """Least score of an episode, for the agent that speaks, whose turns are imitated. Rows of a
    file have the score 1."""

    @property
    def needs_prox(self) -> bool:
        return False

    @property
    def skips_zero(self) -> bool:
        return True

    def credit(self, episodes: list[Episode]) -> None:
        """Advantage 1 on every token that is imitated and 0 on all others."""
        for episode, turn in self.credited_turns(episodes):
            if episode.total(turn) >= self.threshold:
                turn.advantages = spread(turn, 1.0)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """-log p summed over the imitated tokens; mean over them."""
        logprobs = outputs.logprobs
        imitated = torch.from_numpy(batch.advantages * batch.mask).to(logprobs.device)
        return Loss(total=-(logprobs * imitated).sum(), count=float(imitated.sum()))
