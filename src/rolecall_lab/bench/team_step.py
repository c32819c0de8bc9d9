"""Benchmarks a whole step of a team: two agents with weights of their own answer each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rolecall_lab.bench import Benchmark
from rolecall_lab.bench.grpo_step import SMOKE, StepSize, reward

AGENTS = ("first", "second")
SIZE = StepSize("s", tasks=8, samples=8, prompt=200, completion=128)


def joint_reward(answers: Sequence[Sequence[int]]) -> float:
    """Any number of what both agents said: the mean of their rewards."""
    return fmean(reward(ids) for ids in answers)


BENCHMARKS = [
    Benchmark(
        name="team-step",
        unit="steps/s",
        work="One step of two agents with 0.8 million weights each, who answer the same prompt and "
        "share its reward: 8 prompts of 200 tokens x 8 samples of exactly 128 tokens of each "
        "agent: sampling, rewards, credit, one optimizer step of each.",
        full=SIZE,
        smoke=SMOKE,
        ours="rolecall_lab.bench.rolecall_team_step:set_up",
        peers={"comlrl": "rolecall_lab.bench.comlrl_step:set_up"},
    )
]
