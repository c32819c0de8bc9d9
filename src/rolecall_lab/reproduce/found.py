"""Holds what runs came to, and puts runs with several seeds together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SPIKE = 3.0  # times the median of the run


@dataclass(frozen=True, slots=True)
class RunFound:
    """One run: its scores in per cent, and what each step had."""

    seed: int
    average: float  # the mean of the means of the benchmarks, avg@16
    passed: float  # pass@16
    margin: float | None  # of the average, over tasks; None with one task of a benchmark
    by_source: dict[str, tuple[float, float]]
    seconds: float  # of all calls of an attempt together
    tokens: dict[str, float]  # by agent, of an attempt, prompts and answers
    usd: float | None  # of the whole evaluation, where prices are known
    scores: list[float] = field(default_factory=list)  # of training, by step
    norms: dict[str, list[float]] = field(default_factory=dict)  # by agent and step

    @classmethod
    def from_evaluation(
        cls, seed: int, evaluation: dict[str, Any], steps: Iterable[dict[str, Any]]
    ) -> RunFound:
        """`evaluation`: as `rolecall eval` returns it; `steps`: records of metrics.jsonl."""
        overall = evaluation.get("over_sources", evaluation)
        name, passed = (next(k for k in overall if k.startswith(p)) for p in ("avg@", "pass@"))
        cost = evaluation["cost"]
        attempts = evaluation["num_tasks"] * int(name.removeprefix("avg@"))
        records = list(steps)
        agents = [k.split("/")[1] for r in records[:1] for k in r if k.endswith("/grad_norm")]
        return cls(
            seed=seed,
            average=100 * overall[name],
            passed=100 * overall[passed],
            margin=None if (margin := overall.get(f"{name}_margin")) is None else 100 * margin,
            by_source={
                source: (100 * of[name], 100 * of[passed])
                for source, of in evaluation["by_source"].items()
            },
            seconds=sum(
                evaluation[f"time/latency_s/{agent}"] * of["turns"]
                for agent, of in cost["by_agent"].items()
            )
            / attempts,
            tokens={
                agent: (of["prompt_tokens"] + of["sampled_tokens"]) / attempts
                for agent, of in cost["by_agent"].items()
            },
            usd=cost.get("usd"),
            scores=[record["score"] for record in records if "score" in record],
            norms={
                agent: [r[key] for r in records if (key := f"agent/{agent}/grad_norm") in r]
                for agent in dict.fromkeys(agents)
            },
        )


def spikes(norms: Sequence[float]) -> int:
    """Steps whose gradient norm is above three times the run's median, or is no number."""
    usual = median([norm for norm in norms if math.isfinite(norm)] or [0.0])
    return sum(not math.isfinite(norm) or norm > SPIKE * usual for norm in norms)


def largest_over_median(norms: Sequence[float]) -> float:
    """Return how far the largest norm is above the usual one.

    It is infinite where a norm is no number, and where there is none.
    """
    if not norms or not all(map(math.isfinite, norms)):
        return math.inf
    return max(norms) / (median(norms) or math.inf)
