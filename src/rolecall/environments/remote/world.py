"""Acts in a world that a server holds, whatever the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rolecall.core.interfaces.environment import ENDLESS, Observation, World
from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Message, Task
from rolecall.data.sources import LazyTasks
from rolecall.environments.gymnasium.returns import Scale


@dataclass(frozen=True, slots=True)
class Scene:
    """Holds what a server answers: who is to act, and what was earned since the last action."""

    messages: Sequence[Message] = ()  # for the agent that is to act
    agent: str = ""  # that is to act; "" where the server does not name its agents
    rewards: dict[str, float] = field(default_factory=dict)  # by agent
    is_done: bool = False
    is_truncated: bool = False
    is_invalid: bool = False  # the action could not be read, and nothing happened


class Connection(Protocol):
    """One session of a server."""

    async def reset(self, options: JsonObject) -> Scene:
        """Begin an episode. Raises InfrastructureError where the server fails."""
        ...

    async def step(self, agent: str, action: str) -> Scene:
        """Take an action. Raises InfrastructureError where the server fails."""
        ...

    async def close(self) -> None: ...


class ServerTasks(LazyTasks):
    """Tasks that a server poses: a train task is drawn by a seed, a test task is numbered."""

    def __init__(self, split: str, *, source: str, test_size: int, prompt: str = "") -> None:
        self.split, self.source, self.prompt = split, source, prompt
        self.size = test_size if split == "test" else ENDLESS

    def make(self, index: int) -> Task:
        options: JsonObject = {"split": self.split, "seed": derive_seed(self.split, index) % 2**31}
        if self.split == "test":
            options["index"] = index
        info = {"source": self.source, "reset": options}
        return Task(f"{self.source}-{self.split}-{index}", self.prompt, None, info)


class RemoteWorld(World):
    """One episode on a server. It counts `illegal_actions`, which the server could not read."""

    def __init__(self, connection: Connection, task: Task, scale: Scale) -> None:
        self.connection, self.task, self.scale = connection, task, scale
        self.scene = Scene()
        self.totals: dict[str, float] = {}  # by agent
        self.num_illegal = 0

    async def reset(self) -> Observation:
        """Begin the task; raises ValueError for one that the server has not posed."""
        if "reset" not in self.task.info:
            raise ValueError(
                "the server of the environment poses the tasks and plays the workflow, so the team "
                "cannot be asked anything else; write another workflow and environment"
            )
        self.scene = await self.connection.reset(self.task.info["reset"])
        return Observation(last_text(self.scene))

    async def step(self, agent: str, action: str) -> Observation:
        """Send an action of the agent that is to act, whatever its name in the team is.

        The observation is the newest message for whoever is to act then.
        """
        agent = self.scene.agent or agent
        scene = self.scene = await self.connection.step(agent, action)
        self.num_illegal += scene.is_invalid
        for name, reward in scene.rewards.items():
            self.totals[name] = self.totals.get(name, 0.0) + reward
        paid = self.scale.pay(scene.rewards.get(agent, 0.0))
        return Observation(last_text(scene), reward=paid, done=scene.is_done)

    async def score(self, episode: Episode) -> dict[str, float]:
        """Scale the sum of rewards, of each agent where the server pays several."""
        episode.metrics["count/illegal_actions"] = float(self.num_illegal)
        if self.scene.is_truncated or not self.scene.is_done:
            episode.is_truncated = True
        scores = {name: self.scale.score(total) for name, total in self.totals.items()}
        return scores if len(scores) > 1 else {"team": sum(scores.values())}

    async def close(self) -> None:
        await self.connection.close()


def last_text(scene: Scene) -> str:
    """Return the newest message for the agent that is to act."""
    return scene.messages[-1].content if scene.messages else ""
