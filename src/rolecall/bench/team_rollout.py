"""Benchmarks sampling for a team: solver, verifier, and half of the time the solver again."""

from __future__ import annotations

from rolecall.bench import Benchmark
from rolecall.bench.workload import TeamSize

PEERS = {
    "transformers": "rolecall.bench.transformers_rollout:set_up",
    "vllm": "rolecall.bench.vllm_rollout:set_up",
}
WORK = (
    "32 tasks of 120 tokens x 8 episodes: a solver writes about 60 tokens, a verifier reads them "
    "and writes about 24, and half of the time the solver writes again; lengths are sampled once. "
)
SMOKE = TeamSize("xs", tasks=2, samples=2)


def _benchmark(
    name: str, model: str, *, ours: str = "set_up", peers: dict[str, str], note: str
) -> Benchmark:
    return Benchmark(
        name=name,
        unit="sampled tokens/s",
        work=WORK + note,
        full=TeamSize(model, tasks=32, samples=8),
        smoke=SMOKE,
        ours=f"rolecall.bench.engine_rollout:{ours}",
        peers=peers,
    )


BENCHMARKS = [
    _benchmark("team-rollout-s", "s", peers=PEERS, note="0.8 million weights."),
    _benchmark("team-rollout-m", "m", peers=PEERS, note="12.6 million weights."),
    _benchmark(
        "team-rollout-s-unordered",
        "s",
        ours="set_up_unordered",
        peers={},
        note="0.8 million weights, with `deterministic: false`.",
    ),
]
