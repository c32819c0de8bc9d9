"""Lets an agent act in an environment of gem; its tasks are seeds."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveFloat

from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.json_types import Options
from rolecall.core.types import Episode, Task
from rolecall.environments.gymnasium.returns import Scale
from rolecall.environments.gymnasium.tasks import Seeds
from rolecall.environments.processes.worlds import WorldProcess, WorldProcesses

DEFAULT_RULES = "Act in the world that is described below."


class GemEnvironment:
    """Any environment of gem, each world in a process of its own.

    The score is the sum of an episode's rewards, scaled from `low` and `high` to 0 and 1.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self,
        make: str,
        options: Options | None = None,
        python: str = "",
        rules: str = DEFAULT_RULES,
        low: float = -0.1,
        high: float = 1.0,
        step_rewards: bool = False,
        step_timeout_s: PositiveFloat = 60.0,
        test_size: int = 200,
    ) -> None:
        """make: an id that gem has registered (`game:GuessTheNumber-v0-easy`).
        options: keyword arguments of its constructor.
        python: the Python that has gem-llm; by default this one.
        rules: text that stands before what the environment says.
        low: least sum of rewards, which scores 0; games pay -0.1 for what they cannot read.
        high: largest sum of rewards, which scores 1.
        step_rewards: pay each action at once; leave out the reward `correct` with it, or the same
            is paid twice.
        step_timeout_s: most seconds of one action; a world that takes longer is an error.
        test_size: tasks of the test split.
        """
        self.rules, self.test_size = rules, test_size
        self.scale = Scale.make(low, high, pays_steps=step_rewards)
        self.processes = WorldProcesses(
            "gem", make, options or {}, python=python, step_timeout_s=step_timeout_s
        )

    def tasks(self, split: str) -> Sequence[Task]:
        return Seeds(split, prompt=self.rules, test_size=self.test_size)

    def open(self, task: Task, *, seed: int) -> World:
        return GemWorld(self, task.info["seed"])

    async def check(self) -> None:
        """Make one world; raises InfrastructureError where that fails."""
        await self.processes.check()

    async def close(self) -> None:
        await self.processes.close()


class GemWorld(World):
    """One run of the environment."""

    def __init__(self, environment: GemEnvironment, seed: int) -> None:
        self.environment, self.seed = environment, seed
        self.process: WorldProcess | None = None
        self.total = 0.0  # of the environment's rewards

    async def reset(self) -> Observation:
        self.process = await self.environment.processes.open(self.seed)
        return Observation((await self.process.call("reset", seed=self.seed))["text"])

    async def step(self, agent: str, action: str) -> Observation:
        assert self.process is not None, "opened by reset"
        seen = await self.process.call("step", action=action)
        self.total += seen["reward"]
        paid = self.environment.scale.pay(seen["reward"])
        return Observation(seen["text"], reward=paid, done=seen["is_done"])

    async def score(self, episode: Episode) -> dict[str, float]:
        """Scale the sum of rewards to 0 .. 1; raises ValueError unless it is in `low` .. `high`."""
        return {"team": self.environment.scale.score(self.total)}

    async def close(self) -> None:
        if self.process is not None:
            self.process.close()
