"""Pays each proposer of a mixture for its own answer and for the final one."""

from __future__ import annotations

from statistics import fmean

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, group_by
from rolecall.rewards.planner_workers import outcome


class Proposals:
    """Proposers earn a mix of their own correctness and the outcome, the aggregator the outcome.

    Answers are judged by `World.step`, so the world must have one that judges them; of several
    layers an agent earns the mean.

    own: share of a proposer's own answers in what it earns, in 0..1; the rest is the outcome's.
    aggregator: the agent that makes one answer of all; the others are proposers.
    """

    def __init__(self, own: float = 1.0, aggregator: str = "aggregator") -> None:
        if not 0 <= own <= 1:
            raise ValueError(f"own is a share in 0..1, got {own}")
        self.own, self.aggregator = own, aggregator

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Return the rewards of proposers, for proposals and outcome, and of the aggregator.

        own .25, a right proposal, a wrong final answer -> proposer .25, aggregator 0.
        """
        final = outcome(episode)
        rewards = {self.aggregator: final}
        for turns in group_by((turn for turn in episode.turns if turn.chosen), "agent"):
            name = turns[0].agent
            if name != self.aggregator:
                worth = [await world.worth(name, turn.visible) for turn in turns]
                rewards[name] = self.own * fmean(worth) + (1 - self.own) * final
        return rewards
