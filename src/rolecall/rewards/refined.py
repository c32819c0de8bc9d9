"""Pays a chain of agents for how much better the refined answer is than the first."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode
from rolecall.rewards.planner_workers import outcome


class Refined:
    """Pays the outcome to the first writer, and to everybody after it refined minus first.

    The first answer is judged by `World.step`, so the world must have one that judges answers.

    first: the agent that writes the first answer, with its first turn.
    """

    def __init__(self, first: str = "generator") -> None:
        self.first = first

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Return the rewards: wrong, then right -> generator 1, verifier and refiner 1 each; right,
        then wrong -> generator 0, the others -1. Raises ValueError if nobody of that name spoke.
        """
        names = dict.fromkeys(turn.agent for turn in episode.turns)
        if self.first not in names:
            raise ValueError(f"nobody is called {self.first!r} (there are: {', '.join(names)})")
        turn = next(t for t in episode.turns if t.agent == self.first and t.chosen)
        before = await world.worth(self.first, turn.visible)
        after = outcome(episode)
        return {name: after if name == self.first else after - before for name in names}
