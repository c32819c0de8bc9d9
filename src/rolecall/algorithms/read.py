"""ReAd (2405.14314): an agent is told what its proposal would add for the team, and may do better.

A critic of the whole conversation learns what the team earns after each speaker. A proposal that
adds less than `epsilon` goes back to the agent with its score, at most `max_refine` times; what is
refused is no part of the conversation. It works in any workflow, speaker by speaker (mode S of the
paper). A planner that says what all of the team shall do is one speaker, so it is judged by
Q(s, u) - V(s) of the joint plan: mode J. Agents that speak at once are judged one by one, each as
if it spoke first.

Known answer: the matrix game [[0, 2], [2, -1]] played with P(1) = .3 has V .75, A_1(1) .35 and
A_2(1 | 1) -2.1, which add up to -1 - .75; with beta .5 their weights are 2.013753 and .014996.
Degenerate: before the critic has learned anything every proposal adds 0, and is played.
"""

from __future__ import annotations

from statistics import fmean
from typing import ClassVar, Protocol

from pydantic import Field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.losses import ImitationLoss
from rolecall.core.credit import Exponential, LeftOut
from rolecall.core.interfaces.critic import Critic, Judge
from rolecall.core.types import Episode, Turn
from rolecall.critics.inputs import CriticInputs

LARGEST_WEIGHT = 20.0


class Prefixes(Protocol):
    """Defines what ReAd asks of its critic."""

    async def before_and_after(self, turn: Turn, episode: Episode) -> tuple[float, float]: ...
    def learn(
        self, episodes: list[Episode], returns: list[float], *, epochs: int
    ) -> dict[str, float]: ...


class ReAd(ImitationLoss, Algorithm):
    """Refinement by advantages; with `train` the agents also imitate turns that added much."""

    min_group: ClassVar[int] = 1
    critic: ClassVar[str | None] = "team"
    critic_reads: ClassVar[bool] = True

    epsilon: float = Field(0.0, ge=-1e9, le=1e9)
    """Least that a proposal must add to the return that the critic expects."""
    max_refine: int = Field(3, ge=0, le=100)
    """Times that a proposal may be sent back, also in an evaluation; the last one is played."""
    train: bool = False
    """Imitate played turns, each token with the weight min(exp(advantage / beta), 20); without it
    the agents' weights stay as they are."""
    beta: float = Field(1.0, gt=0, le=1e9)
    """How little advantages matter for these weights."""
    critic_epochs: int = Field(4, ge=1, le=1000)
    """Passes of the critic over the episodes of a step."""

    @property
    def moves_policies(self) -> bool:
        return self.train

    def credit(self, episodes: list[Episode]) -> None:
        """Weight each turn by min(exp(A / beta), 20), A being its estimated gain.

        beta .5: a turn that added .35 counts 2.013753 times, one that added -2.1 .014996.
        """
        for _, turn in self.credited_turns(episodes):
            estimate = turn.training.estimate or 0.0
            turn.give_credit(
                Exponential(estimate, self.beta, LARGEST_WEIGHT)
                if self.train
                else LeftOut("the agents' weights stay as they are")
            )

    def make_critic(self, parts: CriticInputs) -> Critic:
        from rolecall.critics.prefixes import PrefixCritic

        return PrefixCritic(
            parts.load(),
            parts.optimizer,
            budget=parts.budget,
            total_updates=parts.steps * self.critic_epochs,
        )

    def judge(self, critic: Prefixes) -> Judge:
        return Refiner(self, critic)

    def fit(self, episodes: list[Episode], critic: Prefixes) -> dict[str, float]:
        """Regress the critic on what the episodes came to.

        `updates` says that something has learned where the agents' weights stay.
        """
        returns = [episode_return(episode) for episode in episodes]
        metrics = critic.learn(episodes, returns, epochs=self.critic_epochs)
        return metrics | (
            {"updates": float(self.critic_epochs)} if metrics and not self.train else {}
        )


class Refiner:
    """Sends back what adds too little."""

    def __init__(self, algorithm: ReAd, critic: Prefixes) -> None:
        self.algorithm, self.critic = algorithm, critic
        self.max_refine = algorithm.max_refine

    async def __call__(self, turn: Turn, episode: Episode) -> str:
        before, after = await self.critic.before_and_after(turn, episode)
        turn.training.estimate = after - before
        if after - before >= self.algorithm.epsilon:
            return ""
        return refusal(before, after)


def refusal(before: float, after: float) -> str:
    """Return what an agent is told whose proposal adds too little to the expected return."""
    return (
        f"Before your proposal the team could expect a score of {before:.2f}, and after it "
        f"{after:.2f}. That is {after - before:+.2f}, which is too little. Propose something "
        "better."
    )


def episode_return(episode: Episode) -> float:
    """Return all that the team earned: outcome, a mean over agents, and the played turns' own
    rewards.
    """
    played = [turn for turn in episode.turns if turn.chosen]
    if not played:
        return 0.0
    own = sum(turn.score for turn in played)
    return own + fmean(episode.outcome(agent) for agent in sorted({t.agent for t in played}))
