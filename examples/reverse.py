"""A new environment on one page: say the word backwards."""

from random import Random

from rolecall import Episode, Task, World

WORDS = ("stop", "live", "drawer", "star", "part", "keep", "time", "reward")


class Reverse:
    """Options of the class are keys of `environment:` in the YAML."""

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def tasks(self, split: str) -> list[Task]:
        random = Random(split)
        words = [random.choice(WORDS) for _ in range(self.size)]
        return [Task(f"{split}-{i}", f"Reverse {w}.", w[::-1]) for i, w in enumerate(words)]

    def open(self, task: Task, *, seed: int) -> World:
        return ReverseWorld(task)


class ReverseWorld(World):
    def __init__(self, task: Task) -> None:
        self.task = task

    async def score(self, episode: Episode) -> dict[str, float]:
        """Share of letters in their right place, for the whole team."""
        pairs = zip(episode.answer, self.task.answer, strict=False)
        return {"team": sum(a == b for a, b in pairs) / len(self.task.answer)}
