"""Every benchmark, by name."""

from __future__ import annotations

from rolecall_lab.bench import Benchmark, conductor, grpo_step, team_rollout, update

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for module in (team_rollout, grpo_step, update, conductor)
    for benchmark in module.BENCHMARKS
}
