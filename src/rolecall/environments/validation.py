"""Holds tasks out of a train split for validation.

Which tasks these are depends on the tasks alone, and on no seed of a run: a run that is resumed
holds out the same ones, and runs with other seeds choose their best checkpoints on the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks
from rolecall.environments.math.rows import normal_question
from rolecall.environments.mixed import Mixture

if TYPE_CHECKING:
    from rolecall.core.interfaces.environment import Environment


SPLIT = "validation"
MOST_PROBES = 1000  # tasks that are looked at to replace one that is held out
GOLDEN = 0.6180339887498949  # multiples of it come back to a neighbourhood as late as possible

Identity = tuple[str, str]


def has_validation(environment: Environment) -> bool:
    """Return whether an environment lists validation tasks of its own in `splits`."""
    return SPLIT in getattr(environment, "splits", ())


def split(train: Sequence[Task], *, per_source: int) -> tuple[Sequence[Task], list[Task]]:
    """Split the train tasks into those that stay and `per_source` validation tasks of each source.

    No task that is left has question and answer of one that is held out. Raises ValueError where
    a source has too few different tasks.
    """
    if isinstance(train, Mixture):
        parts = {name: split(tasks, per_source=per_source) for name, tasks in train.parts.items()}
        remaining = {name: tasks for name, (tasks, _) in parts.items()}
        held = [task for _, of_part in parts.values() for task in of_part]
        return Mixture(remaining, train.weights, label=train.label), held
    if len(train) >= ENDLESS:
        held = _of_endless(train, number=per_source)
        return Left(train, {identity(task) for task in held}), held
    held = _of_finite(train, per_source=per_source)
    names = {identity(task) for task in held}
    return [task for task in train if identity(task) not in names], held


def identity(task: Task) -> Identity:
    """Return a task's question and answer, which are equal for the same problem under another id.

    Tasks without an answer, such as games, are told apart by what else is known of them.
    """
    rest = task.info if task.answer is None else task.answer
    return normal_question(task.prompt), repr(rest)


class Left(LazyTasks):
    """An endless split without some tasks. Others stand in their places, from far away."""

    def __init__(self, tasks: Sequence[Task], without: Collection[Identity]) -> None:
        self.tasks, self.without, self.size = tasks, without, len(tasks)
        self.stride = int(self.size * GOLDEN)

    def make(self, index: int) -> Task:
        for probe in range(MOST_PROBES):
            task = self.tasks[(index + probe * self.stride) % self.size]
            if identity(task) not in self.without:
                return task
        raise ValueError(f"{MOST_PROBES} tasks in a row are held out for validation")


def _of_finite(train: Sequence[Task], *, per_source: int) -> list[Task]:
    """Hold out the tasks whose hashes are lowest, in the order of the split."""
    by_source: dict[str, dict[Identity, Task]] = {}
    for task in train:
        by_source.setdefault(task.source, {}).setdefault(identity(task), task)
    held: set[str] = set()
    for source, different in by_source.items():
        _check_left(len(different), per_source=per_source, source=source)
        order = sorted(different, key=lambda name: derive_seed(SPLIT, *name))
        held |= {different[name].id for name in order[:per_source]}
    kept = {name: task for of in by_source.values() for name, task in of.items()}
    return [task for task in kept.values() if task.id in held]


def _of_endless(train: Sequence[Task], *, number: int) -> list[Task]:
    """Return the first ones that differ from one another."""
    different: dict[Identity, Task] = {}
    for index in range(20 * number + MOST_PROBES):
        task = train[index]
        different.setdefault(identity(task), task)
        if len(different) > 2 * number:
            break
    _check_left(len(different) // 2, per_source=number - 1, source=train[0].source)
    return list(different.values())[:number]


def _check_left(number: int, *, per_source: int, source: str) -> None:
    if number <= per_source:
        of = f" of {source!r}" if source else ""
        raise ValueError(
            f"{per_source} train tasks{of} cannot be held out, because there are only {number} "
            "different ones; ask for fewer"
        )
