"""Declares one setting of a paper: what is trained, how, and what the paper found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Task = Literal["math", "search"]
Weights = Literal["one", "shared", "own"]
ALGORITHMS = {
    "untrained": "untrained",
    "grpo": "GRPO",
    "drmas": "Dr. MAS",
    "agent_mean": "agent's mean, task's spread",
    "agent_std": "task's mean, agent's spread",
}
WEIGHTS = {"one": "one agent", "shared": "shared", "own": "own"}


@dataclass(frozen=True, slots=True)
class Published:
    """Holds what a paper reports for one team, in per cent."""

    average: float  # avg@16 over all benchmarks
    passed: float  # pass@16
    by_source: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table: a team and how it is trained."""

    task: Task
    base: str  # what the row is called by: Qwen/Qwen3-4B, tiny:math
    weights: Weights
    algorithm: str  # of ALGORITHMS
    config: dict[str, Any]
    published: Published | None = None
    kind: str = ""  # what else differs: heavy, mixed

    @property
    def name(self) -> str:
        """Return the name of its config and of its runs: math-qwen3-4b-own-drmas."""
        base = self.base.rpartition("/")[2].replace(":", "-").lower()
        return "-".join(filter(None, (self.task, base, self.weights, self.algorithm, self.kind)))

    @property
    def description(self) -> str:
        """`Qwen/Qwen3-4B, own weights, Dr. MAS`."""
        team = "one agent" if self.weights == "one" else f"{self.weights} weights"
        return f"{self.base}, {team}, {ALGORITHMS[self.algorithm]}"
