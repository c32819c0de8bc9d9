"""VDN (1706.05296) and QMIX (1803.11485) as policy gradients on utterances.

The team's value is a sum, or a monotone mix, of utilities of single agents: q of what an agent
said, v of what it could expect before. This use of them for language models is our own
formulation. Degenerate: one agent under VDN has A = q - v, an actor-critic.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import numpy as np
from pydantic import Field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import compare_scores
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core import gae
from rolecall.core.credit import Amounts
from rolecall.core.interfaces.critic import Critic
from rolecall.core.types import Episode, Turn, Utility, group_by
from rolecall.critics.inputs import CriticInputs
from rolecall.runtime.turn_order import joint_steps


class Utilities(Protocol):
    """Defines what VDN and QMIX ask of their critic."""

    def fit(
        self, episodes: list[Episode], targets: list[list[float]], *, epochs: int
    ) -> dict[str, float]: ...


class Vdn(ClippedLoss, Algorithm):
    """Credit of a turn: the mixed value with its q less the same with its v."""

    min_group: ClassVar[int] = 1
    critic: ClassVar[str | None] = "mixer"
    mixer: ClassVar[Literal["vdn", "qmix"]] = "vdn"

    gamma: float = Field(1.0, gt=0, le=1)
    """Discount from one joint step to the next."""
    lam: float = Field(0.8, ge=0, le=1)
    """1 trusts returns, 0 trusts utilities."""
    eta: float = Field(1.0, ge=0, le=1)
    """1: credit from utilities only; below, the rest is the target less the mixed v, which all
    agents of a joint step share."""
    critic_epochs: int = Field(20, ge=1, le=1000)
    """Passes of the critic over the episodes of a step."""

    def credit(self, episodes: list[Episode]) -> None:
        """Set advantages to q - v, then scale them to mean 0 and spread 1 for each agent.

        q (1.2, .3), v (1.0, .5): A +.2, -.2 before scaling.
        """
        sampled = [turn for _, turn in self.credited_turns(episodes)]
        target: dict[str, float] = {}
        for episode in episodes:
            for joint_step, value in zip(joint_steps(episode), self.targets(episode), strict=True):
                target |= {turn.id: value for turn in joint_step}
        for turns in group_by(sampled, "agent"):
            made_of: list[Amounts] = []
            for turn in turns:
                utility = _utility(turn)
                shared = target[turn.id] - utility.mixed_v
                amounts = {"utility": self.eta * utility.gain, "shared": (1 - self.eta) * shared}
                made_of.append(amounts)
            compare_scores(turns, made_of, names=("agent",), sample="turn")

    def targets(self, episode: Episode) -> list[float]:
        """Return the target y of each joint step.

        y_t = r_t + gamma ((1 - lam) Q_{t+1} + lam y_{t+1}), the last y = r.
        """
        chain = joint_steps(episode)
        if not chain:
            return []
        rewards = [sum(self.own_reward(episode, turn) for turn in step) for step in chain]
        agents = {turn.agent for turn in episode.turns}
        rewards[-1] += float(np.mean([episode.outcome(agent) for agent in sorted(agents)]))
        following = [_utility(joint_step[0]).mixed_q for joint_step in chain[1:]]
        return list(gae.lambda_targets(rewards, following, gamma=self.gamma, lam=self.lam))

    def make_critic(self, parts: CriticInputs) -> Critic:
        from rolecall.critics.utilities import UtilityCritic

        updates = parts.steps * self.critic_epochs
        return UtilityCritic.from_inputs(
            parts, mixer=self.mixer, reads=self.critic_reads, total_updates=updates
        )

    def fit(self, episodes: list[Episode], critic: Utilities) -> dict[str, float]:
        """Regress the mixed q on the targets, and each v on its own q."""
        targets = [self.targets(episode) for episode in episodes]
        return critic.fit(episodes, targets, epochs=self.critic_epochs)


class Qmix(Vdn):
    """Works as VDN with a mix that is monotone in every utility and depends on the conversation."""

    mixer: ClassVar[Literal["vdn", "qmix"]] = "qmix"
    critic_reads: ClassVar[bool] = True


def _utility(turn: Turn) -> Utility:
    assert turn.training.utility is not None, f"no critic has valued turn {turn.id}"
    return turn.training.utility
