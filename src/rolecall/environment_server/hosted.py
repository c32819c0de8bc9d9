"""Opens sessions of an environment and a workflow for agents that are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task
from rolecall.environment_server.session import Session
from rolecall.rollout.episodes import RolloutContext


class HostedEnvironment:
    """An environment and the workflow by which agents act in it.

    `kind` is the name of the environment, such as `math`.
    """

    def __init__(self, name: str, context: RolloutContext, *, kind: str) -> None:
        self.name, self.context, self.kind = name, context, kind
        self._tasks: dict[str, Sequence[Task]] = {}
        self._random = Random()
        self._number = 0  # of sessions

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have tasks."""
        splits: tuple[str, ...] = getattr(self.context.environment, "splits", ("train", "test"))
        return splits

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split. Raises ValueError for an unknown one."""
        if split not in self.splits:
            raise ValueError(f"split is {split!r}; the splits are {', '.join(self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = self.context.environment.tasks(split)
        return self._tasks[split]

    def open(
        self, *, split: str = "train", index: int | None = None, seed: int | None = None
    ) -> Session:
        """Return a session for a task, which is drawn by the seed if there is no index.

        Sessions of the same task and seed are the same. Raises ValueError for a split or an index
        that does not exist.
        """
        tasks = self.tasks(split)
        self._number += 1
        seed = self._random.getrandbits(62) if seed is None else seed
        if index is None:
            index = Random(derive_seed(seed, "task")).randrange(len(tasks))
        if not 0 <= index < len(tasks):
            raise ValueError(f"index is {index}; the split {split!r} has {len(tasks)} tasks")
        task = tasks[index]
        name = f"{self.name}:{task.id}:{self._number}"
        seed = derive_seed(seed, task.id)
        return Session(self.context, Episode(name, task, attempt=0, seed=seed, split=split))
