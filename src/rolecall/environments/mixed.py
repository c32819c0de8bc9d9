"""Mixes several environments by weight into one, whose tasks know their part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Literal

from pydantic import Field

from rolecall.config import registry
from rolecall.config.schema import Name, Named
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS, Environment, World
from rolecall.core.types import Episode, Task
from rolecall.data.sources import LazyTasks, bound_tasks


class Part(Named):
    """One environment of a mixture, with its options."""

    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Its share of each step's tasks, beside the weights of the other parts."""


class Mixture(LazyTasks):
    """Task 0 of each part, then task 1 of each that has one, ...; and the parts themselves."""

    def __init__(
        self,
        parts: Mapping[str, Sequence[Task]],
        weights: Mapping[str, float],
        *,
        label: Literal["family", "source"],
    ) -> None:
        """`label`: which property of a task is the name of its part."""
        self.parts, self.weights, self.label = dict(parts), dict(weights), label
        self.size = sum(len(tasks) for tasks in self.parts.values())

    def source_name(self, task: Task) -> str:
        return task.family if self.label == "family" else task.source

    def make(self, index: int) -> Task:
        row = 0
        for length in sorted({len(tasks) for tasks in self.parts.values()}):
            longer = [tasks for tasks in self.parts.values() if len(tasks) >= length]
            offset, of = divmod(index, len(longer))
            if row + offset < length:
                return longer[of][row + offset]
            index -= (length - row) * len(longer)
            row = length
        raise IndexError(index)


def mix_by_source(tasks: Sequence[Task], *, proportional: bool = False) -> Mixture:
    """Return a mixture with one part for each source.

    The parts have equal weights, or their numbers of tasks if `proportional`. Raises ValueError for
    tasks without end, or of a single source.
    """
    if isinstance(tasks, Mixture):
        raise ValueError("has no effect: the parts of a mixture have weights")
    if len(tasks) >= ENDLESS:
        raise ValueError("cannot tell the sources of a train split without end; mix environments")
    parts: dict[str, list[Task]] = {}
    for task in tasks:
        parts.setdefault(task.source, []).append(task)
    if len(parts) < 2:
        raise ValueError(f"has no effect: all train tasks are of one source ({', '.join(parts)})")
    weights = {name: float(len(own)) if proportional else 1.0 for name, own in parts.items()}
    return Mixture(parts, weights, label="source")


class MixedEnvironment:
    """Several environments in one run. The name of a part is the family of its tasks."""

    def __init__(self, of: dict[Name, Part]) -> None:
        """of: the parts by name, each with its environment's `name`, `weight` and options."""
        if len(of) < 2:
            raise ValueError(f"of: a mixture has at least two parts (it has {len(of)})")
        self.weights = {name: section.weight for name, section in of.items()}
        self.parts = {
            name: _make(section, key=f"environment.of.{name}") for name, section in of.items()
        }
        if any(hasattr(section, "measures") for section in self.parts.values()):
            self.measures = self._measures  # who has it is given all episodes at once

    @property
    def splits(self) -> tuple[str, ...]:
        """Validation tasks are there where all parts have some."""
        own = (getattr(environment, "splits", ()) for environment in self.parts.values())
        has = all("validation" in splits for splits in own)
        return ("train", "validation", "test") if has else ("train", "test")

    def tasks(self, split: str) -> Sequence[Task]:
        """Return a Mixture for "train", a list for others. Raises ConfigError naming the part."""
        by_family = {name: self._labelled(name, split) for name in self.parts}
        if split == "train":
            return Mixture(by_family, self.weights, label="family")
        return [task for tasks in by_family.values() for task in bound_tasks(tasks)]

    def _labelled(self, name: str, split: str) -> Sequence[Task]:
        try:
            tasks = self.parts[name].tasks(split)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"environment.of.{name}: {error}") from error
        labelled = Labelled(tasks, name)
        return labelled if len(tasks) >= ENDLESS else list(labelled)

    def open(self, task: Task, *, seed: int) -> World:
        """Return a world of the part that made the task, which sees the task as it made it."""
        own = {key: value for key, value in task.info.items() if key != "family"}
        own_task = replace(task, id=task.id.removeprefix(f"{task.family}/"), info=own)
        world = self.parts[task.family].open(own_task, seed=seed)
        world.is_part = True
        return world

    def _measures(self, episodes: list[Episode]) -> dict[str, float]:
        """Return each part's measures of its own episodes, under `PART/`."""
        measures: dict[str, float] = {}
        for name, environment in self.parts.items():
            own = [episode for episode in episodes if episode.task.family == name]
            if own and hasattr(environment, "measures"):
                measures |= {
                    f"{name}/{key}": value for key, value in environment.measures(own).items()
                }
        return measures

    async def check(self) -> None:
        """Try out all parts that can be. Raises ConfigError naming the part that cannot run."""
        for name, environment in self.parts.items():
            if hasattr(environment, "check"):
                try:
                    await environment.check()
                except Exception as error:  # the boundary to what parts need from outside
                    raise ConfigError(f"environment.of.{name}: {error}") from error

    async def close(self) -> None:
        """Close all parts, also when one of them raises."""
        async with AsyncExitStack() as stack:
            for environment in self.parts.values():
                if hasattr(environment, "close"):
                    stack.push_async_callback(environment.close)


class Labelled(LazyTasks):
    """A part's tasks with the part's name as family and in front of their ids."""

    def __init__(self, tasks: Sequence[Task], family: str) -> None:
        self.tasks, self.family, self.size = tasks, family, len(tasks)

    def make(self, index: int) -> Task:
        task = self.tasks[index]
        info = {**task.info, "family": self.family}
        return replace(task, id=f"{self.family}/{task.id}", info=info)


def _make(part: Part, *, key: str) -> Environment:
    kind = registry.resolve("environment", part.name, key=f"{key}.name")
    if kind is MixedEnvironment:
        raise ConfigError(f"{key}.name: a part is no mixture itself; name its parts here")
    options = registry.check_options(kind, part.options, key=key, skip=0)
    try:
        environment: Environment = kind(**options)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    return environment
