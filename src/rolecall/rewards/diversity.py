"""Pays an attempt for differing from the other right attempts at its task."""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from rolecall.core.diversity import distance, token_bigrams, turns_by_agent
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Group


class Diversity:
    """Each agent earns the mean distance of its attempt to the others at the task, 0 to 1.

    The distance of two attempts is 1 less the Jaccard similarity of the sets of token bigrams of
    all that the agent said. Attempts that the gate does not pass earn 0, and are not compared with.
    It is paid when all attempts at a task have ended, so an evaluation does not pay it.

    gate: `right` passes attempts with a score of 1, `mean` those with a score above 0 that is at
        least the mean of the group, `none` all, even nonsense.
    """

    def __init__(self, gate: Literal["right", "mean", "none"] = "right") -> None:
        if gate not in ("right", "mean", "none"):
            raise ValueError(f"gate is right, mean or none, got {gate!r}")
        self.gate = gate

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Pay nothing yet: the other attempts are not known."""
        return {}

    def pay_group(self, group: Group) -> list[dict[str, float]]:
        """Return what each attempt of a group earns, by agent.

        Right attempts that say 1 2 3, 1 2 4 and 9 -> (.5 + 1) / 2, (.5 + 1) / 2 and 1.
        """
        passed = self._passes(group)
        by_agent = [turns_by_agent(episode) for episode in group]
        paid: list[dict[str, float]] = [{} for _ in group]
        for agent in sorted({name for turns in by_agent for name in turns}):
            compared = {
                number: token_bigrams(turns[agent])
                for number, turns in enumerate(by_agent)
                if agent in turns and passed[number]
            }
            for number, turns in enumerate(by_agent):
                if agent not in turns:
                    continue
                others = [answer for other, answer in compared.items() if other != number]
                earns = number in compared and bool(others)
                paid[number][agent] = (
                    fmean(distance(compared[number], answer) for answer in others) if earns else 0.0
                )
        return paid

    def _passes(self, group: Group) -> list[bool]:
        if self.gate == "none":
            return [True] * len(group)
        scores = [episode.headline or 0.0 for episode in group]
        if self.gate == "right":
            return [score >= 1.0 for score in scores]
        least = fmean(scores)
        return [score > 0.0 and score >= least for score in scores]
