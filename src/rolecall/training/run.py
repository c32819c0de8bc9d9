"""Connects the parts of one run that the trainer and the evaluation work with."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.kl_controller import KlController
from rolecall.cluster.session import RaySession
from rolecall.config.schema import Config
from rolecall.core.interfaces.critic import Critic
from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.learner import Learner
from rolecall.core.interfaces.publisher import Publisher
from rolecall.core.json_types import Record
from rolecall.core.types import Group, Task
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall.rollout.task_sampler import TaskSampler
from rolecall.runtime.spending import Account
from rolecall.storage import checkpoint
from rolecall.training.algorithm_group import AlgorithmGroup


@dataclass(slots=True)
class Run:
    """The parts of one run; only the trainer and the evaluation hold them all."""

    config: Config
    context: RolloutContext
    sampler: TaskSampler  # of train tasks
    test: list[Task]  # the held-out tasks that are evaluated before and after
    validation: list[Task]  # those that are evaluated during the run; without any, test is
    engine: Engine
    publisher: Publisher
    learners: dict[str, Learner]  # by policy; policies that nobody trains have none
    opponent_pools: dict[str, OpponentPool]  # by the policy that plays them
    algorithms: dict[str, Algorithm]  # by trainable agent, with the settings of its loss
    algorithm_groups: list[AlgorithmGroup]  # of agents that are credited together
    accounts: dict[str, Account]  # what paid servers cost, by their policies or rewards
    data: list[Group]  # what is trained on instead of episodes, if anything
    session: RaySession | None = None  # the cluster, which is left when all else is closed

    def __repr__(self) -> str:
        team = ", ".join(f"{name}: {agent.policy}" for name, agent in self.config.team.items())
        return f"<Run of {team}; {self.config.workflow.name}, {self.config.environment.name}>"

    @property
    def versions(self) -> dict[str, int]:
        """Return how often the weights of each trained policy were updated."""
        return {name: learner.version for name, learner in self.learners.items()}

    def get_algorithms(self, policy: str) -> dict[str, Algorithm]:
        """Return the algorithms of the agents that a policy's updates train."""
        team = self.config.team
        return {name: a for name, a in self.algorithms.items() if team[name].policy == policy}

    def get_step_algorithm(self, policy: str) -> Algorithm:
        """Return the algorithm that decides about a policy's optimizer steps.

        Agents that share a policy agree on these settings, so it is that of any of them.
        """
        return next(iter(self.get_algorithms(policy).values()))

    @property
    def parts(self) -> dict[str, checkpoint.Saved]:
        """Folder of a checkpoint -> what it holds; a policy cannot have a name with a dot."""
        opponents = {f"opponents.{name}": pool for name, pool in self.opponent_pools.items()}
        return {**self.learners, **self.critics, **opponents}

    @property
    def critics(self) -> dict[str, Critic]:
        """Return the critics that are no value heads, by their folders in a checkpoint.

        Two algorithms may each have a critic of one kind, but they share no agent.
        """
        return {
            f"{checkpoint.CRITIC}{name}.{min(group.agents)}": critic
            for group in self.algorithm_groups
            for name, critic in group.critics.items()
        }

    @property
    def stateful(self) -> list[Algorithm | TaskSampler | KlController]:
        """Return what a checkpoint holds a small state of."""
        controllers = [group.kl_controller for group in self.algorithm_groups]
        return [
            *(group.algorithm for group in self.algorithm_groups),
            self.sampler,
            *(controller for controller in controllers if controller is not None),
        ]

    async def close(self) -> None:
        """End what the run has started: its environment, what samples and what trains."""
        async with AsyncExitStack() as stack:  # each is closed, also where another one cannot be
            if self.session is not None:
                stack.callback(self.session.close)
            for resource in [*self.learners.values(), self.engine, self.context]:
                if hasattr(resource, "close"):
                    stack.push_async_callback(resource.close)

    def restore(self, saved: Path) -> list[Record]:
        """Take over a checkpoint's weights, critics and states. Returns the trainer's own."""
        states = checkpoint.load(saved, self.parts)
        for owner, state in zip(self.stateful, states, strict=False):
            owner.load_state_dict(state)
        return states[len(self.stateful) :]
