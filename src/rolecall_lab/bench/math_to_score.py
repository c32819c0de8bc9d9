"""Benchmarks the seconds in which a real language model learns to reach a score.

Both sides begin with the same weights and draw word problems of one operation from the same
generator. A score is the mean reward over the last steps, so it costs neither side anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import rolecall
from rolecall.environments.math.generated import Kind
from rolecall_lab.bench import Benchmark

SYSTEM = "Solve the problem. End with the answer in \\boxed{}."
LEVEL = 1  # operations of a problem
KINDS: list[Kind] = ["word"]
LEARNING_RATE = 1e-5
MOST_STEPS = 60
WINDOW = 3  # steps that a score is the mean of


@dataclass(frozen=True, slots=True)
class Goal:
    """Holds what a step samples, and the score at which a run ends."""

    tasks: int  # of a step
    samples: int  # of each task
    max_tokens: int
    score: float
    warm_steps: int  # of SFT, before either side begins


class Progress:
    """Knows the mean reward of the last steps."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.rewards: deque[float] = deque(maxlen=WINDOW)
        self.steps = 0

    def is_reached(self, rewards: list[float]) -> bool:
        """Add the rewards of a step; raises RuntimeError after `MOST_STEPS`."""
        self.rewards.append(fmean(rewards))
        self.steps += 1
        score = fmean(self.rewards)
        if len(self.rewards) == WINDOW and score >= self.goal.score:
            return True
        if self.steps == MOST_STEPS:
            raise RuntimeError(f"the score is {score:.2f} after {self.steps} steps")
        return False


def make_config(goal: Goal, base: str, **sections: Any) -> dict[str, Any]:
    """Return the config of one agent that trains all weights of a base."""
    sampling = {"max_tokens": goal.max_tokens}
    return {
        "team": {"solver": {"policy": "solver", "system": SYSTEM, "sampling": sampling}},
        "policies": {"solver": {"base": base, "optimizer": {"lr": LEARNING_RATE}}},
        "workflow": "single",
        "environment": {"name": "math", "level": LEVEL, "kinds": KINDS},
        "rollout": {"groups": goal.tasks, "group_size": goal.samples},
        "evaluation": {"tasks": 0},
        **sections,
    }


def warm_base(goal: Goal, folder: Path) -> Path:
    """Return the folder of smollm2-135m after some steps of SFT, made where it is not there yet."""
    run = folder / f"warm-{goal.warm_steps}"
    weights = run / f"checkpoints/step-{goal.warm_steps}/solver"
    if not (run / "summary.json").is_file():
        config = make_config(
            goal, "smollm2-135m",
            algorithm="sft",
            rollout={"groups": 32, "data": "environment"},
            trainer={"steps": goal.warm_steps, "seed": 0},
        )  # fmt: skip
        config["policies"]["solver"]["optimizer"]["lr"] = 3 * LEARNING_RATE
        rolecall.train(config, output=run)
    return weights


BENCHMARKS = [
    Benchmark(
        name="real-math-to-score",
        unit="runs/s",
        work="GRPO with all weights of smollm2-135m after some SFT, on word problems of one "
        "operation: 2 tasks x 8 attempts of at most 24 tokens a step, until the mean reward of "
        "three steps is 0.55.",
        full=Goal(tasks=2, samples=8, max_tokens=24, score=0.55, warm_steps=4),
        smoke=Goal(tasks=2, samples=2, max_tokens=24, score=0.0, warm_steps=1),
        ours="rolecall_lab.bench.rolecall_to_score:set_up",
        peers={"trl": "rolecall_lab.bench.trl_to_score:set_up"},
    )
]
