"""A new environment on one page: sums such as `Compute 6*3+5.`"""

from itertools import product

from rolecall import Episode, Task, World
from rolecall.grading.math.answers import extract


class Sums:
    """Options of the class are keys of `environment:` in the YAML."""

    def __init__(self, largest: int = 9) -> None:
        self.largest = largest

    def tasks(self, split: str) -> list[Task]:
        """Every fifth sum is for tests, so that train and test share no question."""
        numbers = range(2, self.largest + 1)
        sums = [(f"{a}*{b}+{c}", a * b + c) for a, b, c in product(numbers, repeat=3)]
        chosen = sums[::5] if split == "test" else [s for i, s in enumerate(sums) if i % 5]
        return [Task(text, f"Compute {text}.", str(value)) for text, value in chosen]

    def open(self, task: Task, *, seed: int) -> World:
        return SumsWorld(task)


class SumsWorld(World):
    def __init__(self, task: Task) -> None:
        self.task = task

    async def score(self, episode: Episode) -> dict[str, float]:
        """1 for the whole team if the boxed number is right, else 0."""
        return {"team": float(extract(episode.answer) == self.task.answer)}
