"""Opens a kitchen for two cooks, who choose in turn what each does in the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from random import Random

from rolecall.core.interfaces.environment import ENDLESS, Observation, World
from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task
from rolecall.data.sources import LazyTasks
from rolecall.environments.kitchen.rules import (
    ACTIONS,
    NOTHING,
    ONION,
    PLATE,
    SOUP,
    Kitchen,
    most_soups,
    play_step,
)

TEST_SHARE = 10  # one kitchen in ten is a test kitchen
BRACKETS = re.compile(r"\[\s*(\w+)\s*\]")
RULES = (
    "Serve as many soups as you can. [onion] takes an onion, [pot] puts it into the pot. A full "
    "pot cooks for {time} steps. [plate] takes a plate, [soup] fills it from the pot, "
    "[serve] hands it out. [wait] does nothing. Two cooks cannot do the same thing in one step. "
    "Write one action in brackets."
)


class KitchenEnvironment:
    """Kitchens in which soups can be served: what cooks hold, the pot and the time differ.

    onions: most onions of a soup; those of a kitchen are drawn from 2 up to it.
    time: steps that a soup cooks.
    min_steps: fewest steps of an episode.
    max_steps: most steps of an episode.
    test_size: kitchens of the test split.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self,
        onions: int = 3,
        time: int = 2,
        min_steps: int = 12,
        max_steps: int = 24,
        test_size: int = 200,
    ) -> None:
        if not 2 <= onions <= 6:
            raise ValueError(f"onions is {onions}; write 2 to 6")
        if not 0 <= time <= 10:
            raise ValueError(f"time is {time}; a soup cooks for 0 to 10 steps")
        if not 3 <= min_steps <= max_steps <= 60:
            raise ValueError(
                f"min_steps is {min_steps} and max_steps {max_steps}; they are 3 to 60, the second "
                "at least the first"
            )
        self.onions, self.time = onions, time
        self.steps = (min_steps, max_steps)
        self.sizes = {"train": ENDLESS, "test": test_size}

    def tasks(self, split: str) -> Sequence[Task]:
        return Kitchens(self, split, size=self.sizes[split])

    def open(self, task: Task, *, seed: int) -> World:
        return KitchenWorld(read_kitchen(task.info))


class Kitchens(LazyTasks):
    """Kitchen number i of a split; none is in both splits."""

    def __init__(self, environment: KitchenEnvironment, split: str, *, size: int) -> None:
        self.environment, self.split, self.size = environment, split, size

    def make(self, index: int) -> Task:
        its, steps = self.environment, self.environment.steps
        random = Random(derive_seed("kitchen", self.split, its.onions, its.time, *steps, index))
        while True:
            info = self._draw(random)
            in_test = derive_seed(*sorted(info.items())) % TEST_SHARE == 0
            is_right_split = in_test == (self.split == "test")
            if is_right_split and most_soups(read_kitchen(info)) > 0:  # two plates are in the way
                rules = RULES.format(time=its.time)
                return Task(f"{self.split}-{index}", rules, None, {"source": "kitchen"} | info)

    def _draw(self, random: Random) -> JsonObject:
        size = random.randint(2, self.environment.onions)
        onions = random.randint(0, size)
        return {
            "onions": onions,
            "cooking": random.randint(0, self.environment.time) if onions == size else 0,
            "hands": [random.choice((NOTHING, ONION, PLATE, SOUP)) for _ in range(2)],
            "steps": random.randint(*self.environment.steps),
            "size": size,
            "time": self.environment.time,
        }


def read_kitchen(info: JsonObject) -> Kitchen:
    """Return the kitchen that a task begins with."""
    return Kitchen(
        onions=info["onions"],
        cooking=info["cooking"],
        hands=tuple(info["hands"]),
        steps=info["steps"],
        size=info["size"],
        time=info["time"],
    )


class KitchenWorld(World):
    """Collects an action of each of two agents, then takes the step.

    The agent that acts first is cook 1. The outcome is the soups that were served, as a share of
    those that could have been.
    """

    def __init__(self, kitchen: Kitchen) -> None:
        self.kitchen = kitchen
        self.best = most_soups(kitchen)
        self.names: list[str] = []
        self.chosen: list[str] = []
        self.served = 0
        self.num_lost = 0

    async def reset(self) -> Observation:
        return Observation(self.kitchen.view())

    async def fork(self) -> KitchenWorld:
        other = copy(self)
        other.names, other.chosen = self.names[:], self.chosen[:]
        return other

    async def step(self, agent: str, action: str) -> Observation:
        """Note an action; with the second cook's the step is taken. Raises ValueError for an agent
        whose turn it is not, and for a third one.
        """
        if agent not in self.names and len(self.names) < 2:
            self.names.append(agent)
        if agent not in self.names or self.names.index(agent) != len(self.chosen):
            raise ValueError(f"it is not the turn of {agent!r}; the cooks are {self.names}")
        self.chosen.append(read_action(action))
        if len(self.chosen) < 2:
            return Observation("")
        one, two = self.chosen
        self.kitchen, served, lost = play_step(self.kitchen, (one, two))
        self.chosen, self.served = [], self.served + served
        self.num_lost += len(lost)
        losses = "".join(f" Cook {cook + 1} lost the last step." for cook in lost)
        return Observation(
            self.kitchen.view() + losses,
            team=self.served / self.best,
            done=self.kitchen.steps == 0,
        )

    async def score(self, episode: Episode) -> dict[str, float]:
        episode.metrics["count/soups"] = float(self.served)
        episode.metrics["count/lost_steps"] = float(self.num_lost)
        return {"team": self.served / self.best}


def read_action(text: str) -> str:
    """Return the only action in brackets; "" where none or several stand there."""
    named = {name.lower() for name in BRACKETS.findall(text)} & set(ACTIONS)
    return named.pop() if len(named) == 1 else ""
