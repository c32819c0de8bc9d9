"""Makes tasks of the seeds of a foreign environment; training seeds never run out."""

from __future__ import annotations

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks


class Seeds(LazyTasks):
    """`info["seed"]` has 31 bits, as numpy's older generators want them; no two splits share one.

    Seeds("test", prompt="Play.", test_size=200)[1] ->
    Task("test-1", "Play.", None, {"source": "test", "seed": ...})
    """

    def __init__(self, split: str, *, prompt: str, test_size: int) -> None:
        self.split, self.prompt = split, prompt
        self.size = test_size if split == "test" else ENDLESS

    def make(self, index: int) -> Task:
        seed = derive_seed(self.split, index) % 2**30 * 2 + (self.split == "test")
        info = {"source": self.split, "seed": seed}
        return Task(f"{self.split}-{index}", self.prompt, None, info)
