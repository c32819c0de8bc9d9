"""MA-AIRL (1907.13220): a learned discriminator is the reward, and experts show what earns it.

Each agent is paid for turns that its discriminator takes for those of its experts; Dr. MAS then
compares the agent's turns with one another. What the world pays is read by nobody: its scores only
say how well the team does. Penalties and other rewards of single actions still count.

Known answer: f .5, log pi -1 -> D .817574, reward 1.5; D .5 everywhere -> loss 2 ln 2, reward 0.
Degenerate: an agent without turns of an expert is an error before the run begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Protocol

from rolecall.algorithms.drmas import DrMas
from rolecall.critics.parts import CriticParts
from rolecall.interfaces.critic import Critic
from rolecall.types import Episode


class Imitator(Protocol):
    """What MA-AIRL asks of its critic."""

    def fit(self) -> dict[str, float]: ...


class MaAirl(DrMas):
    """Dr. MAS on what a discriminator pays; `mean`, `std` and `count` make it another one."""

    critic: ClassVar[str | None] = "discriminator"
    critic_reads: ClassVar[bool] = True
    in_credit: ClassVar[frozenset[str]] = DrMas.in_credit | {"experts", "reward"}

    experts: str = ""
    """File of demonstrations, as `rolecall collect` writes them: what each agent should say."""
    reward: Literal["logit", "raw"] = "logit"
    """Pay log D - log(1 - D), or the score f alone, which the policy's entropy is no part of."""

    @property
    def demonstrations(self) -> str | None:
        return self.experts

    def credit(self, episodes: list[Episode]) -> None:
        """Rewards [1.5, 0, -1.5] of an agent's turns -> [1, 0, -1], whatever the world pays."""
        super().credit([replace(episode, rewards={}) for episode in episodes])

    def make_critic(self, parts: CriticParts) -> Critic:
        from rolecall.critics.discriminator import Discriminator

        return Discriminator(parts, parts.experts(self.experts), reward=self.reward)

    def fit(self, episodes: list[Episode], critic: Imitator) -> dict[str, float]:
        """One step of the discriminators on this step's turns and the last ones'."""
        return critic.fit()
