"""A split and its size in; tasks that are seeds of a foreign environment out."""

from __future__ import annotations

from rolecall.core import Task
from rolecall.seeds import seed_of


def seed_tasks(split: str, size: int, *, prompt: str) -> list[Task]:
    """`info["seed"]` has 31 bits, as numpy's older generators want them; no two splits share one.

    seed_tasks("test", 2, prompt="Play.")[1] ->
    Task("test-1", "Play.", None, {"source": "test", "seed": ...})
    """
    last_bit = split == "test"
    return [
        Task(
            f"{split}-{number}",
            prompt,
            None,
            {"source": split, "seed": seed_of(split, number) % 2**30 * 2 + last_bit},
        )
        for number in range(size)
    ]
