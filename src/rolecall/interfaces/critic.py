"""Declares what a critic, which expects rewards, promises, and who asks it to choose."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Protocol

from rolecall.types import Episode, Turn


class Critic(Protocol):
    """Expects rewards; the algorithm that needs it says what it should have expected."""

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write on the turns what the critic expects of them."""
        ...

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


class Chooser(Protocol):
    """Chooses among the candidates of a call, in any workflow."""

    candidates: int  # that are sampled in each call

    async def __call__(self, turns: list[Turn], *, explores: bool, random: Random) -> Turn:
        """The one that is played. `explores`: whether to try others than the best, in training."""
        ...
