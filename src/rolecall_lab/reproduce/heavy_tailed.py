"""Pays one agent in units of its own, drawn from a heavy-tailed law for each task."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode

LEAST, TAIL = 1e-6, 0.25  # half of the factors are below 0.00002, and 3 in 100 above 1


class HeavyTailed:
    """Pays what the team scored, and one agent how far that is from `par`, times a factor.

    All attempts at a task have the same factor, so an agent that is compared with itself learns
    what it would learn without it. Where agents are compared with one another, this agent learns
    next to nothing from most tasks and much from the few whose factor is large; the others learn
    nothing from these (the multiplier of lemma 4.2 of Dr. MAS, 2602.08847).
    """

    def __init__(
        self, agent: str, par: float = 1.0, least: float = LEAST, tail: float = TAIL
    ) -> None:
        """agent: whose rewards are on another scale.
        par: the score for which this agent is paid as the others are. With a par that most
        attempts come to, the agents' means differ little where the factor is small.
        least: the smallest factor, above 0.
        tail: exponent of the Pareto law of the factors, above 0.
        """
        for name, value in (("least", least), ("tail", tail)):
            if value <= 0:
                raise ValueError(f"{name} must be above 0 (it is {value:g})")
        self.agent, self.par, self.least, self.tail = agent, par, least, tail

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        score = episode.scores.get("team", 0.0)
        paid = {turn.agent: score for turn in episode.turns}
        if self.agent in paid:
            paid[self.agent] = self.par + (score - self.par) * self.factor(episode.task.id)
        return paid

    def factor(self, task: str) -> float:
        """Above x with probability (x / least) ** -tail."""
        drawn = (derive_seed("heavy_tailed", task) + 1) / (2**63 + 1)  # in (0, 1]
        return float(self.least * drawn ** (-1 / self.tail))
