"""Poses tasks of a file to the program of an external workflow, which scores its work itself."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.core.interfaces.environment import World
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import gather, list_sources
from rolecall.environments.text.rows import text_tasks
from rolecall.rewards.posted import read_posted


class ExternalEnvironment:
    """Rows with a column `prompt`; the program gets the other columns as the task's `info`."""

    def __init__(self, train: str | list[str], test: str | list[str]) -> None:
        """train, test: local files or hub data sets; one, or a list of several."""
        self.sources = {"train": list_sources(train), "test": list_sources(test)}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

        def read_in(source: str) -> Sequence[Task]:
            return text_tasks(locate(source, split=split), question="prompt", answer=None)

        return gather(self.sources[split], read=read_in)

    def open(self, task: Task, *, seed: int) -> World:
        return ExternalWorld(task)


class ExternalWorld(World):
    """Scores an episode by the rewards that its program posted."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def task_info(self) -> JsonObject:
        """The columns of the row, for the program."""
        return {name: value for name, value in self.task.info.items() if name != "source"}

    async def score(self, episode: Episode) -> dict[str, float]:
        return await read_posted(episode, self)
