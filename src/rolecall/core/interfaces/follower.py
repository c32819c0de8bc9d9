"""Declares what a reward promises that follows an episode action by action, as a coach does."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Turn


class Follower(Protocol):
    """Follows one episode. Called with it, once it is over, it gives the reward."""

    async def on_action(self, turn: Turn, before: Turn | None) -> None:
        """Follow an agent's action and its tools' answers; the workflow waits for this call.

        before: where this is a replay, the same action of the episode that is replayed.
        """
        ...

    async def words_for(self, agent: str, turn: Turn) -> str:
        """Return what an agent is told beside a turn that it is told; "" for nothing."""
        ...

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]: ...

    def close(self) -> None:
        """End what is under way, because the episode is over or was abandoned."""
        ...


@runtime_checkable
class Follows(Protocol):
    """A reward that wants to see each action of an episode as it is taken."""

    def follow(self, episode: Episode, world: World) -> Follower: ...
