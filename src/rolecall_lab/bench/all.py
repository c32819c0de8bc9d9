"""Every benchmark, by name."""

from __future__ import annotations

from rolecall_lab.bench import (
    Benchmark,
    conductor,
    grpo_step,
    math_to_score,
    team_rollout,
    team_step,
    update,
)

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for module in (team_rollout, grpo_step, team_step, math_to_score, update, conductor)
    for benchmark in module.BENCHMARKS
}
