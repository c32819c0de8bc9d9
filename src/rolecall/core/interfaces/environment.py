"""Declares what an environment offers: tasks for a split, and a world for each attempt."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from rolecall.core.interfaces.tool import Tool
from rolecall.core.json_types import JsonObject
from rolecall.core.tags import find_box
from rolecall.core.types import Episode, Task

ENDLESS = 1_000_000_000  # length of a split that is generated without end


@dataclass(frozen=True, slots=True)
class Observation:
    """Holds what a world answers to an action."""

    text: str
    key: str = ""  # identity of the state; by default the text
    reward: float = 0.0  # of the agent that acted
    team: float = 0.0  # of the whole team, for the state it is in now
    done: bool = False
    info: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Overrides of the config that an environment suggests where a run has no signal."""

    easier: str = ""  # for easier tasks, such as environment.level=1
    harder: str = ""
    lenient: str = ""  # for an answer that is read in more forms


ASYNC = ("reset", "step", "fork", "become", "worth", "equal", "score", "truth_text", "close")


class World:
    """One attempt's own copy of the environment. Override what the environment has.

    Methods may be plain functions too: `def step` is awaited like `async def step`. It then holds
    up all other episodes for as long as it takes.
    """

    is_part: bool = False  # of a mixture of environments, whose other parts may have other tools

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ASYNC:
            method = cls.__dict__.get(name)
            if not inspect.isfunction(method):
                continue
            if name == "step":
                setattr(cls, name, _observed(method))
            elif not inspect.iscoroutinefunction(method):
                setattr(cls, name, _awaited(method))

    async def reset(self) -> Observation:
        return Observation("")

    async def step(self, agent: str, action: str) -> Observation:
        raise ValueError(f"{type(self).__name__} has no steps: agents only talk in it")

    def tools(self) -> list[Tool]:
        """Return what the agents that name the tool `world` may call."""
        return []

    async def fork(self) -> World:
        """Return a world in the same state that goes its own way, for trying candidates out."""
        raise ValueError(f"{type(self).__name__} cannot fork: it has no way to copy its state")

    async def become(self, fork: World) -> None:
        """Go on from the state of a fork: the candidate that was played."""
        vars(self).update(vars(fork))

    async def worth(self, agent: str, action: str) -> float:
        """Return what an action earns the team by itself: a step in a fork, undone afterwards.

        A world that cannot fork takes the step.
        """
        world = self if type(self).fork is World.fork else await self.fork()
        return (await world.step(agent, action)).team

    async def equal(self, one: str, other: str) -> bool:
        """Return whether two answers are the same answer, for votes."""
        return one.strip().casefold() == other.strip().casefold()

    def find_answer(self, text: str) -> str | None:
        """Return the answer that a text states, for votes; None if it states none.

        By default the content of its last \\boxed{} after thinking.
        """
        return find_box(text)

    async def score(self, episode: Episode) -> dict[str, float]:
        """Outcome in [0, 1] for the "team" or for single agents.

        A world whose steps pay rewards needs none: the score is then their sum, and pays nobody.
        """
        raise ValueError(f"{type(self).__name__} does not score episodes")

    async def truth_text(self) -> str:
        """Return what a coach may be shown as the truth about the work as it is now.

        "" stands for the task's answer. Never shown to an agent.
        """
        return ""

    async def close(self) -> None:
        return None


def _awaited(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plain method as one that is awaited."""

    @wraps(method)
    async def call(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    return call


def _observed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `step`, plain or not, as one that is awaited and whose result is checked."""
    awaited, code = _awaited(method), method.__code__

    @wraps(method)
    async def call(*arguments: Any, **options: Any) -> Observation:
        seen = await awaited(*arguments, **options)
        if not isinstance(seen, Observation):
            raise TypeError(
                f"{method.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno}) "
                f"returned a {type(seen).__name__}; it must return an Observation, such as "
                "Observation(text, reward=1.0, done=True)"
            )
        return seen

    return call


class Environment(Protocol):
    """Tasks and worlds. A finite split is a list; an endless one a long lazy sequence.

    With `splits = ("train", "validation", "test")` it says that it has validation tasks too.
    `suggestions` (Suggestions), `parse_answer` (a parser of turns), `demonstrate` (see
    `core.interfaces.demonstrator`) and `lone_workflow` (the built-in workflow in which one agent
    works in it; by default `single`) are optional.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """Tasks of "train", "test" or another of its splits.

        Raises ValueError naming file and row of a bad one.
        """
        ...

    def open(self, task: Task, *, seed: int) -> World: ...
