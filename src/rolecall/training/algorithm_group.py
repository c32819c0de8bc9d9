"""Holds an algorithm, the agents that it assigns credit to together, and its critics."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.kl_controller import KlController, make_kl_controller
from rolecall.core.interfaces.critic import Critic, Discriminator
from rolecall.core.types import Episode


@dataclass(slots=True)
class AlgorithmGroup:
    """Agents whose settings of credit are equal, and the one algorithm that assigns it to them.

    Their losses may still differ: `Run.algorithms` has each agent's own settings.
    """

    algorithm: Algorithm
    agents: frozenset[str]
    critic: Critic | None = None
    discriminator: Discriminator | None = None  # which pays its turns
    kl_controller: KlController | None = None
    seen: list[Episode] = field(default_factory=list)  # of this step, as its critics noted on them

    @property
    def critics(self) -> dict[str, Critic]:
        """Return the critics that are no value heads of policies, by the names of a config."""
        all_critics = {
            self.algorithm.critic: self.critic,
            self.algorithm.discriminator: self.discriminator,
        }
        return {
            name: one for name, one in all_critics.items() if name is not None and one is not None
        }


def group_agents(algorithms: dict[str, Algorithm]) -> list[AlgorithmGroup]:
    """Group agents whose algorithms assign the same credit; `algorithms` by trainable agent."""
    groups: list[AlgorithmGroup] = []
    for agent, algorithm in algorithms.items():
        same = next((g for g in groups if g.algorithm.shares_credit(algorithm)), None)
        if same is None:
            controller = make_kl_controller(algorithm)
            groups.append(AlgorithmGroup(algorithm, frozenset({agent}), kl_controller=controller))
        else:
            same.agents |= {agent}
    return groups
