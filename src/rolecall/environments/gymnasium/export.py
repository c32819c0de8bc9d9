"""Offers an environment of this package as a Gymnasium environment, text for text.

env = AsGymnasium(TextEnvironment()); text, _ = env.reset(seed=0); env.step("My summary.")
"""

from __future__ import annotations

import asyncio
import string
from typing import Any

from rolecall.core.interfaces.environment import Environment, World
from rolecall.core.json_types import JsonObject, Options
from rolecall.core.optional import needs
from rolecall.core.tags import visible
from rolecall.core.types import Episode, Task

with needs("gymnasium", extra="gym"):
    import gymnasium


class AnyText(gymnasium.spaces.Text):
    """Texts of any characters, also empty ones; samples are of ASCII's."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class AsGymnasium(gymnasium.Env[str, str]):
    """One agent acts; its world must have steps. Not for use inside of an event loop.

    The observation is the task at first, then what the world answers. The last action, the one
    that ends the world or is number `max_turns` (then truncated), earns the outcome as well.
    """

    def __init__(
        self,
        environment: Environment,
        split: str = "train",
        *,
        agent: str = "actor",
        max_turns: int = 8,
        max_chars: int = 16_384,
    ) -> None:
        self.environment, self.agent, self.max_turns = environment, agent, max_turns
        self.tasks = environment.tasks(split)
        self.observation_space = AnyText(max_chars)
        self.action_space = AnyText(max_chars)
        self._runner = asyncio.Runner()
        self._world: World | None = None

    def reset(
        self, *, seed: int | None = None, options: Options | None = None
    ) -> tuple[str, JsonObject]:
        """Another task, drawn by the seed; `options={"task": 3}` is task number 3."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(self.tasks)))
        task = self.tasks[(options or {}).get("task", drawn)]
        self._end()
        world = self.environment.open(task, seed=int(self.np_random.integers(2**31)))
        self._world, self._task, self._turns = world, task, 0
        opening = self._runner.run(world.reset()).text
        return "\n\n".join(text for text in (task.prompt, opening) if text), self._info(task)

    def step(self, action: str) -> tuple[str, float, bool, bool, JsonObject]:
        """Return observation, reward, whether the world ended, whether the turns did, and info."""
        assert self._world is not None, "reset comes before step"
        seen = self._runner.run(self._world.step(self.agent, visible(action)))
        self._turns += 1
        truncated = self._turns >= self.max_turns and not seen.done
        reward = seen.reward
        if seen.done or truncated:
            episode = Episode("gymnasium", self._task, 0, 0, answer=visible(action))
            rewards = self._runner.run(self._world.score(episode))
            reward += rewards.get("team", 0.0) + rewards.get(self.agent, 0.0)
        return seen.text, float(reward), seen.done, truncated, self._info(self._task)

    def close(self) -> None:
        self._end()
        close = getattr(self.environment, "close", None)
        if close is not None:
            self._runner.run(close())
        self._runner.close()

    def _end(self) -> None:
        if self._world is not None:
            self._runner.run(self._world.close())
        self._world = None

    def _info(self, task: Task) -> JsonObject:
        return {"task": task.id}
