"""Declares what a critic, which expects rewards, promises, and who asks it before a turn."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Protocol

from rolecall.core.types import Episode, Turn


class Critic(Protocol):
    """Expects rewards; the algorithm that needs it says what it should have expected."""

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write on the turns what the critic expects of them."""
        ...

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


class Discriminator(Critic, Protocol):
    """A critic that pays turns before credit is given, and teaches itself from what it has read."""

    def fit(self) -> dict[str, float]:
        """Once all policies are updated; its metrics."""
        ...


class Chooser(Protocol):
    """Chooses among the candidates of a call, in any workflow."""

    candidates: int  # that are sampled in each call

    async def __call__(self, turns: list[Turn], *, explores: bool, random: Random) -> Turn:
        """Return the turn to play; `explores`: whether to try others than the best, in training."""
        ...


class Judge(Protocol):
    """Says of each proposal of an agent, in any workflow, whether it is played."""

    max_refine: int  # times that an agent proposes anew, at most

    async def __call__(self, turn: Turn, episode: Episode) -> str:
        """Return what the agent is told behind its own words before it speaks again.

        "" plays the turn. `episode`: as far as it has been played.
        """
        ...
