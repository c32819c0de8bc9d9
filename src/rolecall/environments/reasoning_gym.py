"""Poses tasks of reasoning-gym, whose generators also score the answers."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rolecall.core.errors import nearest
from rolecall.core.interfaces.environment import World
from rolecall.core.json_types import Options
from rolecall.core.optional import optional
from rolecall.core.tags import find_box, find_tag
from rolecall.core.types import Episode, Task
from rolecall.data.sources import LazyTasks

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

# An entry is made of the seed plus its index, so splits begin far from one another.
SEEDS = {"train": 0, "test": 2_000_000_000}


class ReasoningGymEnvironment:
    """Generated tasks of one or several data sets of reasoning-gym, in turns.

    The answer is the last `<answer>` of the team's answer, else the last `\\boxed{}`.
    """

    def __init__(
        self,
        datasets: str | list[str] | dict[str, Options | None],
        train_size: int = 10_000,
        test_size: int = 200,
    ) -> None:
        """datasets: a name, several names, or names with their options, such as
            `{leg_counting: {max_animals: 4}}`; `reasoning_gym.factory.DATASETS` lists them.
        train_size: number of training tasks.
        test_size: number of test tasks.
        """
        if isinstance(datasets, str):
            datasets = [datasets]
        if not datasets:
            raise ValueError("datasets is empty; name at least one")
        self.options = {
            name: (datasets[name] if isinstance(datasets, dict) else None) or {}
            for name in datasets
        }
        self.sizes = {"train": train_size, "test": test_size}
        self._made: dict[str, dict[str, ProceduralDataset]] = {}  # by split and name

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a data set that does not exist and for options that it does not take.
        """
        return GeneratedTasks(self._make(split), split, size=self.sizes[split])

    def open(self, task: Task, *, seed: int) -> World:
        dataset = self._make(task.info["split"])[task.source]
        return ReasoningGymWorld(dataset, task.info["index"])

    def _make(self, split: str) -> dict[str, ProceduralDataset]:
        if split not in self._made:
            self._made[split] = {
                name: make_dataset(name, options, seed=SEEDS[split], size=self.sizes[split])
                for name, options in self.options.items()
            }
        return self._made[split]


class GeneratedTasks(LazyTasks):
    """Tasks of several data sets in turns."""

    def __init__(self, datasets: dict[str, ProceduralDataset], split: str, *, size: int) -> None:
        self.datasets, self.split, self.size = datasets, split, size

    def make(self, index: int) -> Task:
        names = list(self.datasets)
        number, position = divmod(index, len(names))
        name = names[position]
        entry = self.datasets[name][number]
        info = {"source": name, "split": self.split, "index": number}
        return Task(f"{name}-{self.split}-{number}", entry["question"], entry["answer"], info)


class ReasoningGymWorld(World):
    """Scores an answer as its data set does, from 0 to 1."""

    def __init__(self, dataset: ProceduralDataset, index: int) -> None:
        self.dataset, self.index = dataset, index

    async def fork(self) -> ReasoningGymWorld:
        return ReasoningGymWorld(self.dataset, self.index)

    def find_answer(self, text: str) -> str | None:
        """Return the content of the last `<answer>`, else of the last box; None without either."""
        return find_tag(text, "answer") or find_box(text)

    async def score(self, episode: Episode) -> dict[str, float]:
        answer = self.find_answer(episode.answer)
        entry = self.dataset[self.index]
        # Some data sets solve equations or run programs.
        score = await asyncio.to_thread(self.dataset.score_answer, answer, entry)
        return {"team": float(score)}


def make_dataset(name: str, options: Options, *, seed: int, size: int) -> ProceduralDataset:
    """Return a data set of reasoning-gym; raises ValueError if it cannot be made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of packages that it imports
        factory = optional("reasoning_gym.factory", extra="reasoning-gym", key="environment")
    if name not in factory.DATASETS:
        hint = nearest(name, list(factory.DATASETS))
        raise ValueError(f"datasets: reasoning-gym has no {name!r}; {hint}")
    try:
        dataset: ProceduralDataset = factory.create_dataset(name, seed=seed, size=size, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"datasets.{name}: {error}") from error
    return dataset
