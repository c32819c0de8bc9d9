"""Lets agents act in an environment of Gymnasium; its tasks are seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rolecall.config import registry
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.json_types import Options
from rolecall.core.optional import optional
from rolecall.core.types import Episode, Task
from rolecall.environments.gymnasium.actions import Actions, Show, choose_display, describe_actions
from rolecall.environments.gymnasium.returns import Scale
from rolecall.environments.gymnasium.tasks import Seeds
from rolecall.tools.functions import run_in_thread

if TYPE_CHECKING:
    from gymnasium import Env


Result = TypeVar("Result")


REGISTERED = re.compile(r"([\w.-]+:)?[\w./-]+-v\d+")
NOTICE = "That was not one legal action."


@dataclass(frozen=True, slots=True)
class Play:
    """The rules by which an environment is played and rewarded."""

    make: Callable[[], Env]
    actions: Actions
    show: Show
    scale: Scale  # of what an episode returns in all
    penalty: float  # taken from the reward of an illegal action


class GymnasiumEnvironment:
    """Any environment of Gymnasium that has Discrete or Text actions.

    The score is the sum of an episode's rewards, scaled from `low` and `high` to 0 and 1.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self,
        make: str,
        options: Options | None = None,
        rules: str = "",
        actions: list[str] | None = None,
        show: str | None = None,
        low: float = 0.0,
        high: float = 1.0,
        penalty: float = 0.0,
        step_rewards: bool = False,
        test_size: int = 200,
    ) -> None:
        """make: a registered id (`FrozenLake-v1`) or an import path (`package.module:Name`).
        options: keyword arguments of its constructor.
        rules: text that explains the world to agents.
        actions: names of Discrete actions; by default their numbers.
        show: import path of a function that makes text of an observation; by default str.
        low: least sum of rewards, which scores 0.
        high: largest sum of rewards, which scores 1.
        penalty: amount subtracted from the reward of an illegal action.
        step_rewards: pay each action at once; leave out the reward `correct` with it, or the same
            is paid twice.
        test_size: tasks of the test split.

        Raises ValueError for spaces that cannot be played.
        """
        scale = Scale.make(low, high, pays_steps=step_rewards)
        if penalty < 0:
            raise ValueError(f"penalty is {penalty:g}; write 0 or more")
        gymnasium = optional("gymnasium", extra="gym")

        def make_env() -> Env:
            if REGISTERED.fullmatch(make):
                return gymnasium.make(make, **options or {})
            return registry.import_object(make, key="environment.make")(**options or {})

        try:
            probe = make_env()
        except (gymnasium.error.Error, TypeError) as error:
            raise ValueError(f"{make} cannot be made with options {options}: {error}") from error
        try:
            named = describe_actions(probe.action_space, actions)
        finally:
            probe.close()
        shown = choose_display(show, key="environment.show")
        self.play = Play(make_env, named, shown, scale, penalty)
        self.rules, self.test_size = f"{rules}\n{named.description}".strip(), test_size

    def tasks(self, split: str) -> Sequence[Task]:
        return Seeds(split, prompt=self.rules, test_size=self.test_size)

    def open(self, task: Task, *, seed: int) -> World:
        return GymnasiumWorld(task, self.play)


class GymnasiumWorld(World):
    """One run of the environment, in threads of its own. It counts `illegal_actions`."""

    def __init__(self, task: Task, play: Play) -> None:
        self.task, self.play = task, play
        self.env: Any = None
        self.total = 0.0  # of the environment's rewards
        self.num_illegal = 0
        self.under_way = False  # a call, which may have been given up

    async def reset(self) -> Observation:
        self.env = await self._call(self.play.make)
        observation, _ = await self._call(lambda: self.env.reset(seed=self.task.info["seed"]))
        return Observation(self.play.show(observation))

    async def step(self, agent: str, action: str) -> Observation:
        """Take one step; an unreadable action is reported, penalised and counted, and does
        nothing.
        """
        play, read = self.play, self.play.actions.read(action)
        if read is None:
            self.num_illegal += 1
            return Observation(f"{NOTICE}\n{play.actions.description}", reward=-play.penalty)
        seen, reward, terminated, truncated, _ = await self._call(lambda: self.env.step(read))
        self.total += float(reward)
        paid = play.scale.pay(float(reward))
        return Observation(play.show(seen), reward=paid, done=bool(terminated or truncated))

    async def score(self, episode: Episode) -> dict[str, float]:
        """Scale the sum of rewards to 0 .. 1; raises ValueError unless it is in `low` .. `high`."""
        episode.metrics["count/illegal_actions"] = float(self.num_illegal)
        return {"team": self.play.scale.score(self.total)}

    async def close(self) -> None:
        """Close the environment.

        One that hangs is left behind: closing it would hang as well.
        """
        if self.env is not None and not self.under_way:
            await self._call(self.env.close)

    async def _call(self, work: Callable[[], Result]) -> Result:
        """Environments compute, or wait, as long as they like: not in the loop of all episodes."""

        def run() -> Result:
            try:
                return work()
            finally:
                self.under_way = False

        self.under_way = True
        return await run_in_thread(run)
