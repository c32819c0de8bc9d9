"""Declares what a critic, which expects rewards, promises the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rolecall.types import Episode


class Critic(Protocol):
    """Expects rewards; the algorithm that needs it says what it should have expected."""

    async def annotate(self, episodes: list[Episode]) -> None:
        """Write on the turns what the critic expects of them."""
        ...

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...
