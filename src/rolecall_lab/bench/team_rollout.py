"""Benchmarks sampling for a team: solver, verifier, and half of the time the solver again."""

from __future__ import annotations

from dataclasses import replace

from rolecall_lab.bench import Benchmark
from rolecall_lab.bench.workload import TeamSize

PEERS = {
    "transformers": "rolecall_lab.bench.transformers_rollout:set_up",
    "vllm": "rolecall_lab.bench.vllm_rollout:set_up",
    "llama.cpp": "rolecall_lab.bench.llama_cpp_rollout:set_up",
    "openvino": "rolecall_lab.bench.openvino_rollout:set_up",
}
WORK = (
    "{} tasks of 120 tokens x 8 episodes: a solver writes about 60 tokens, a verifier reads them "
    "and writes about 24, and half of the time the solver writes again; lengths are sampled once. "
)
TRAINED = {name: side for name, side in PEERS.items() if name != "transformers"}
REAL = (
    "The shape of smollm2-135m. Each run begins with new weights, whose loading counts, and asks "
    "for log-probs."
)
SMOKE = TeamSize("xs", tasks=2, samples=2)


def _benchmark(
    name: str,
    model: str,
    *,
    ours: str = "set_up",
    peers: dict[str, str] = PEERS,
    tasks: int = 32,
    dtype: str = "float32",
    trains: bool = False,
    note: str,
) -> Benchmark:
    return Benchmark(
        name=name,
        unit="sampled tokens/s",
        work=WORK.format(tasks) + note,
        full=TeamSize(model, tasks=tasks, samples=8, dtype=dtype, trains=trains),
        smoke=replace(SMOKE, dtype=dtype, trains=trains),
        ours=f"rolecall_lab.bench.engine_rollout:{ours}",
        peers=peers,
    )


BENCHMARKS = [
    _benchmark("team-rollout-s", "s", note="0.8 million weights."),
    _benchmark("team-rollout-m", "m", note="12.6 million weights."),
    _benchmark("team-rollout-l", "l", tasks=4, note="0.6 billion weights, shaped as Qwen3-0.6B."),
    _benchmark(
        "team-rollout-l-bf16",
        "l",
        tasks=4,
        dtype="bfloat16",
        note="The same in bfloat16.",
    ),
    _benchmark("real-rollout", "r", tasks=8, trains=True, peers=TRAINED, note=REAL),
    _benchmark(
        "real-rollout-bf16",
        "r",
        tasks=8,
        trains=True,
        peers=TRAINED,
        dtype="bfloat16",
        note="The same in bfloat16.",
    ),
    _benchmark(
        "team-rollout-s-unordered",
        "s",
        ours="set_up_unordered",
        peers={},
        note="0.8 million weights, with `deterministic: false`.",
    ),
]
