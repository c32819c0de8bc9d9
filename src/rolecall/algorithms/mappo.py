"""MAPPO (2103.01955): one critic that reads the whole conversation, at training time only.

An episode is a chain of joint steps; agents that did not hear each other share one and its
advantage. Degenerate: one agent with one turn is PPO with a value for the turn.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from pydantic import Field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.whitening import whiten_turns
from rolecall.core import gae
from rolecall.core.credit import StepAdvantage
from rolecall.core.interfaces.critic import Critic
from rolecall.core.types import Episode, Turn, spread
from rolecall.critics.inputs import CriticInputs
from rolecall.critics.transcript import StepsOf
from rolecall.runtime.turn_order import joint_steps


class TeamCritic(Protocol):
    """Defines what MAPPO asks of the critic that reads the whole conversation."""

    agents: list[str]

    def fit(
        self, episodes: list[Episode], targets: list[gae.Doubles], *, epochs: int
    ) -> dict[str, float]: ...


class Mappo(ClippedLoss, Algorithm):
    """Credit of a turn: what the team earned after it, less what the team critic expected."""

    min_group: ClassVar[int] = 1
    steps_of: ClassVar[StepsOf] = staticmethod(joint_steps)
    """What an episode is a chain of."""
    critic: ClassVar[str | None] = "team"
    critic_reads: ClassVar[bool] = True

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount from one joint step to the next."""
    lam: float = Field(0.95, ge=0, le=1)
    """1 trusts returns, 0 trusts values."""
    whiten: bool = True
    """Give the advantages of all turns of a step mean 0 and spread 1."""
    epochs: int = Field(4, ge=1, le=1000)
    critic_epochs: int = Field(4, ge=1, le=1000)
    """Passes of the critic over the episodes of a step."""

    def credit(self, episodes: list[Episode]) -> None:
        """Values [.5, .7, .4] of three joint steps, outcome 1, lam .95 -> [.4565, .27, .6]."""
        turns = {turn.id: turn for _, turn in self.credited_turns(episodes)}
        for episode in episodes:
            chain = type(self).steps_of(episode)
            for agent in sorted({turn.agent for turn in episode.turns}):
                terms = self.chain(episode, chain, agent)
                for joint_step, term in zip(chain, terms, strict=True):
                    for turn in joint_step:
                        if turn.agent == agent and turn.id in turns:
                            turn.give_credit(term)
                            turn.returns = spread(turn, term.advantage + term.value)
        if self.whiten:
            whiten_turns(list(turns.values()))

    def chain(self, episode: Episode, chain: list[list[Turn]], agent: str) -> list[StepAdvantage]:
        """Return an agent's credit at each joint step, [joint steps]."""
        terms: list[StepAdvantage] = []
        next_value = next_advantage = 0.0
        for number, joint_step in reversed([*enumerate(chain)]):
            amounts = {"own": sum(self.own_reward(episode, turn) for turn in joint_step)}
            if number == len(chain) - 1:
                amounts["outcome"] = episode.outcome(agent)
            term = StepAdvantage(
                sum(amounts.values()), amounts, value_at(joint_step, agent), self.gamma, self.lam,
                next_value, next_advantage, number, len(chain),
            )  # fmt: skip
            terms.insert(0, term)
            next_value, next_advantage = term.value, term.advantage
        return terms

    def make_critic(self, parts: CriticInputs) -> Critic:
        from rolecall.critics.joint import JointCritic

        return JointCritic(
            parts.load(),
            parts.optimizer,
            agents=parts.agents,
            budget=parts.budget,
            total_updates=parts.steps * self.critic_epochs,
            steps_of=type(self).steps_of,
        )

    def fit(self, episodes: list[Episode], critic: TeamCritic) -> dict[str, float]:
        """Regress the critic on the returns, [joint steps, agents] of each episode."""
        targets = []
        for episode in episodes:
            chain = type(self).steps_of(episode)
            returns = [
                [term.value + term.advantage for term in self.chain(episode, chain, agent)]
                for agent in critic.agents
            ]
            targets.append(np.array(returns).T)
        return critic.fit(episodes, targets, epochs=self.critic_epochs)


def value_at(joint_step: list[Turn], agent: str) -> float:
    """Return the critic's value of a joint step for an agent, or its one value for all agents."""
    turn = next((turn for turn in joint_step if turn.agent == agent), joint_step[0])
    by_agent = turn.training.team_values
    if by_agent is not None:
        return float(by_agent[agent])
    assert turn.training.values is not None, f"no critic valued turn {turn.id}"
    return float(turn.training.values[0])
