"""Declares what a world offers in which seated agents move in turn."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rolecall.core.interfaces.environment import Observation


@runtime_checkable
class TurnBased(Protocol):
    """A game under way, as the workflow `self_play` plays it."""

    async def seat_agents(self, names: list[str]) -> None:
        """Begin the game; `names` are in the order of the seats.

        Raises ValueError where the game is not for so many.
        """
        ...

    def player(self) -> str | None:
        """Return the agent to move; None when the game is over."""
        ...

    def seat(self, agent: str) -> int:
        """Return the place of an agent in the game, from 0."""
        ...

    def view(self, agent: str) -> Observation:
        """Return what the agent to move may know and do now."""
        ...

    async def step(self, agent: str, action: str) -> Observation:
        """Play an action. A text that comes back is a warning: the agent may try once more."""
        ...
