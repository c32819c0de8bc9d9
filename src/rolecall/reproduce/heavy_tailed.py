"""Pays one agent in units of its own, drawn from a heavy-tailed law for each task."""

from __future__ import annotations

from rolecall.interfaces.environment import World
from rolecall.seeding import seed_of
from rolecall.types import Episode

LEAST, TAIL = 0.002, 0.5  # half of the factors are below 0.008, and 4 in 100 above 1


class HeavyTailed:
    """What the team scored to every agent, and to one of them a factor of the task times as much.

    All attempts at a task have the same factor, so an agent that is compared with itself learns
    what it would learn without it. Where agents are compared with one another, this agent learns
    next to nothing from most tasks, and much from the few whose factor is large; the others learn
    nothing from these (the multiplier of lemma 4.2 of Dr. MAS, 2602.08847).
    """

    def __init__(self, agent: str, least: float = LEAST, tail: float = TAIL) -> None:
        """agent: whose rewards are on the other scale.
        least: the smallest factor, above 0.
        tail: exponent of the Pareto law of the factors, above 0.
        """
        for name, value in (("least", least), ("tail", tail)):
            if value <= 0:
                raise ValueError(f"{name} must be above 0 (it is {value:g})")
        self.agent, self.least, self.tail = agent, least, tail

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        score = episode.metrics.get("score", 0.0)
        agents = sorted({turn.agent for turn in episode.turns})
        return {
            name: score * (self.factor(episode.task.id) if name == self.agent else 1.0)
            for name in agents
        }

    def factor(self, task: str) -> float:
        """Above x with probability (x / least) ** -tail."""
        drawn = (seed_of("heavy_tailed", task) + 1) / (2**63 + 1)  # in (0, 1]
        return float(self.least * drawn ** (-1 / self.tail))
